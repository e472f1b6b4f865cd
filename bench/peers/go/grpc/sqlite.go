package main

import (
	"context"
	"database/sql"
	"errors"
	"runtime"

	"github.com/google/uuid"
	_ "github.com/mattn/go-sqlite3"

	pb "investor-records/bench/gen/investor/v1"
)

type sqlite struct{ insertion, selection, page *sql.Stmt }

// openSQLite opens one connection that writes, each insert a commit of its own, and some that
// read.
func openSQLite(path string) (*sqlite, error) {
	const options = "?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=5000&_mutex=no"
	writer, err := sql.Open("sqlite3", "file:"+path+options)
	if err != nil {
		return nil, err
	}
	writer.SetMaxOpenConns(1)
	if _, err = writer.Exec(`CREATE TABLE IF NOT EXISTS investors (
		id BLOB PRIMARY KEY, type INTEGER NOT NULL,
		first_name TEXT NOT NULL, middle_name TEXT NOT NULL, last_name TEXT NOT NULL,
		address_line1 TEXT NOT NULL, address_line2 TEXT NOT NULL, city TEXT NOT NULL,
		state TEXT NOT NULL, zip_code TEXT NOT NULL, country TEXT NOT NULL, language TEXT NOT NULL
	) STRICT, WITHOUT ROWID`); err != nil {
		return nil, err
	}
	insertion, err := writer.Prepare("INSERT INTO investors VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
	if err != nil {
		return nil, err
	}
	readers, err := sql.Open("sqlite3", "file:"+path+options+"&mode=ro")
	if err != nil {
		return nil, err
	}
	readers.SetMaxOpenConns(2 * runtime.NumCPU())
	readers.SetMaxIdleConns(2 * runtime.NumCPU())
	const columns = `type, first_name, middle_name, last_name,
		address_line1, address_line2, city, state, zip_code, country, language`
	selection, err := readers.Prepare("SELECT " + columns + " FROM investors WHERE id = ?")
	if err != nil {
		return nil, err
	}
	page, err := readers.Prepare("SELECT id, " + columns + " FROM investors ORDER BY id LIMIT ?")
	return &sqlite{insertion, selection, page}, err
}

func (s *sqlite) insert(ctx context.Context, id uuid.UUID, c *content) error {
	_, err := s.insertion.ExecContext(ctx, id[:], c.Type, c.FirstName, c.MiddleName, c.LastName,
		c.AddressLine1, c.AddressLine2, c.City, c.State, c.ZipCode, c.Country, c.Language)
	return err
}

func (s *sqlite) find(_ context.Context, id uuid.UUID) (*content, error) {
	var c content
	// Without a context, for which the driver would start a goroutine: that takes longer than the
	// lookup.
	err := s.selection.QueryRow(id[:]).Scan(&c.Type, &c.FirstName, &c.MiddleName, &c.LastName,
		&c.AddressLine1, &c.AddressLine2, &c.City, &c.State, &c.ZipCode, &c.Country, &c.Language)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return &c, err
}

func (s *sqlite) list(limit int32) ([]*pb.Investor, error) {
	rows, err := s.page.Query(limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []*pb.Investor
	for rows.Next() {
		var id []byte
		var c content
		if err := rows.Scan(&id, &c.Type, &c.FirstName, &c.MiddleName, &c.LastName,
			&c.AddressLine1, &c.AddressLine2, &c.City, &c.State, &c.ZipCode, &c.Country, &c.Language); err != nil {
			return nil, err
		}
		found = append(found, toInvestor(uuid.UUID(id), &c))
	}
	return found, rows.Err()
}
