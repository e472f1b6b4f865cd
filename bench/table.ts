/** A table in Markdown, its first row the head. */
export function toTable(rows: string[][]): string {
  const [head = [], ...body] = rows;
  const widths = head.map((_, column) =>
    Math.max(3, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  const line = (row: string[]) =>
    `| ${row.map((cell, i) => cell.padEnd(widths[i] ?? 0)).join(" | ")} |`;
  return [line(head), line(widths.map((width) => "-".repeat(width))), ...body.map(line)].join("\n");
}

/** A number with as many digits as tell something, and its unit. */
export function show(value: number, unit = ""): string {
  if (Number.isNaN(value)) return "";
  const digits = Number.isInteger(value) || value >= 100 ? 0 : value < 10 ? 2 : 1;
  const text = value.toLocaleString("en", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
  return `${text}${unit}`;
}
