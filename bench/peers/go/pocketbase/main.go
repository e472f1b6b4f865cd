// PocketBase with a collection of investors that anyone may call. Started with a folder for its
// data; prints the port that it serves on.
package main

import (
	"fmt"
	"log"
	"net"
	"os"

	_ "github.com/mattn/go-sqlite3"
	"github.com/pocketbase/dbx"
	"github.com/pocketbase/pocketbase/apis"
	"github.com/pocketbase/pocketbase/core"
	_ "github.com/pocketbase/pocketbase/migrations"
)

func main() {
	app := core.NewBaseApp(core.BaseAppConfig{DataDir: os.Args[1], DBConnect: connect})
	if err := app.Bootstrap(); err != nil {
		log.Fatal(err)
	}
	app.OnServe().BindFunc(func(event *core.ServeEvent) error {
		if err := prepare(app); err != nil {
			return err
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		event.Listener = listener
		event.InstallerFunc = nil
		fmt.Println(listener.Addr().(*net.TCPAddr).Port)
		return event.Next()
	})
	log.Fatal(apis.Serve(app, apis.ServeConfig{}))
}

// connect uses SQLite in C, which is faster than PocketBase's own choice, with its pragmas, but
// makes every commit durable.
func connect(path string) (*dbx.DB, error) {
	return dbx.Open("sqlite3", "file:"+path+"?_busy_timeout=10000&_journal_mode=WAL&_synchronous=FULL"+
		"&_foreign_keys=on&_cache_size=-32000&_mutex=no")
}

func prepare(app core.App) error {
	// Without a log of requests, which would be written to a second database.
	settings := app.Settings()
	settings.Logs.MaxDays = 0
	if err := app.Save(settings); err != nil {
		return err
	}
	anyone := ""
	investors := core.NewBaseCollection("investors")
	investors.CreateRule = &anyone
	investors.ViewRule = &anyone
	investors.Fields.Add(&core.SelectField{
		Name: "type", Required: true, MaxSelect: 1, Values: []string{"individual", "institution"},
	})
	for _, name := range []string{
		"firstName", "middleName", "lastName", "addressLine1", "addressLine2", "city", "state", "zipCode",
	} {
		investors.Fields.Add(&core.TextField{Name: name, Max: 256, Pattern: `^\P{Cc}*$`})
	}
	for _, name := range []string{"country", "language"} {
		investors.Fields.Add(&core.TextField{Name: name, Required: true, Pattern: `^[a-z]{2,3}$`})
	}
	return app.Save(investors)
}
