import type { ListInvestorsResponse } from "../../gen/investor/v1/investor_pb.js";

/** What lists records. */
interface Lister {
  listInvestors(request: { pageSize: number; pageToken: string }): Promise<ListInvestorsResponse>;
}

/** The pages of a list, one after the other. */
export async function* pagesOf(
  client: Lister,
  pageSize = 0,
): AsyncGenerator<ListInvestorsResponse, void> {
  let pageToken = "";
  do {
    const page = await client.listInvestors({ pageSize, pageToken });
    yield page;
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
}

/** The records of all pages. */
export async function listAll(client: Lister, pageSize = 1_000) {
  const pages = await Array.fromAsync(pagesOf(client, pageSize));
  return pages.flatMap(({ investors }) => investors);
}
