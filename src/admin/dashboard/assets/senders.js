// Top senders: a table sorted by what the reader asks for, with the level against the fullest limit.

import { get } from "./api.js";
import { foreign, h } from "./dom.js";
import { ago, limitLink, number, octets, refusalLink, senderAddress, senderLink } from "./format.js";
import { fullest } from "./levels.js";
import { PAGE_ROWS, bar, modeMark, more, share, table } from "./parts.js";

/** Maximum number of rows of an answer. */
const MAX_ROWS = 10_000;

const SORTS = { recipients: "recipients", messages: "messages", refusals: "refusals", octets: "size" };

export function title() {
    return "Top senders";
}

export async function load(view) {
    const { signal } = view.abort;
    const by = sortOf(view);
    // One row more tells whether there are more.
    const rows = Math.min(view.state.rows ?? PAGE_ROWS, MAX_ROWS - 1) + 1;
    const [top, levels] = await Promise.all([
        get("/v1/top", { by, rows, kind: view.parameters.get("kind") }, signal),
        fullest(signal),
    ]);
    return { ...top, levels };
}

function sortOf({ parameters }) {
    const by = parameters.get("by");
    return Object.hasOwn(SORTS, by) ? by : "recipients";
}

export function render(view, { senders, levels, "last-hour": hour }) {
    const rows = view.state.rows ?? PAGE_ROWS;
    const hasMore = senders.length > rows && rows < MAX_ROWS - 1;
    return [
        h("p", { "data-key": "sum" }, `Users, and clients without a login, by ${SORTS[sortOf(view)]} per minute: averages over about ten minutes. In the last hour all senders sent ${number(hour.messages)} messages to ${number(hour.recipients)} recipients, and were refused ${number(hour.refusals)} times.`),
        filters(view),
        senderTable("Top senders", senders.slice(0, rows), levels, view),
        hasMore && more(rows, Math.max(senders.length, rows + PAGE_ROWS), () => {
            view.state.rows = rows + PAGE_ROWS;
            view.reload();
        }),
    ];
}

function filters(view) {
    const chosen = view.parameters.get("kind") ?? "";
    const link = (kind, words) => h("a", { href: address(sortOf(view), kind), "aria-current": kind === chosen ? "true" : null }, words);
    return h("p", { class: "filters", "data-key": "filters" }, link("", "All"), " ", link("user", "Users"), " ", link("client", "Clients without a login"));
}

function address(by, kind) {
    return `#/senders?by=${by}${kind ? `&kind=${kind}` : ""}`;
}

/** Returns a table of senders. With a view, its columns sort the page of top senders. */
export function senderTable(name, senders, levels, view) {
    const by = view && sortOf(view);
    const sorted = (quantity) => view && {
        sorted: by === quantity,
        sort: () => location.assign(address(quantity, view.parameters.get("kind") ?? "")),
    };
    const rate = (quantity) => ({
        title: `${SORTS[quantity]} / min`, kind: "number", ...sorted(quantity),
        cell: (row) => (quantity === "octets" ? octets(row["octets-per-minute"]) : number(row[`${quantity}-per-minute`])),
    });
    return table(name, [
        { title: "sender", heading: true, cell: (row) => senderLink(row.kind, row.name) },
        { title: "fullest limit", cell: (row) => level(row, levels) },
        rate("recipients"),
        rate("messages"),
        rate("refusals"),
        rate("octets"),
        { title: "active since", cell: (row) => ago(row.since) },
        { title: "last refusal", cell: lastRefusal },
    ], senders, { key: (row) => `${row.kind}=${row.name}`, empty: "None has sent or was refused in the last hour." });
}

function level(row, levels) {
    const budget = levels.get(`${row.kind}=${row.name}`);
    if (!budget) return h("span", { class: "relative" }, "low");
    const words = `${row.name}: level of ${budget.limit}`;
    return [h("a", { class: "plain", href: senderAddress(row.kind, row.name), "aria-label": `${words}, ${Math.floor(100 * share(budget))} %` }, bar(budget, words)), " ", h("span", { class: "relative" }, limitLink(budget.limit)), modeMark(budget.mode)];
}

/** Causes of refusals that are no limits. */
const CAUSES = { suspended: "suspension", upstream: "upstream", "sender-mismatch": "sender address" };

function lastRefusal(row) {
    const last = row["last-refusal"];
    if (!last) return "none";
    const cause = CAUSES[last.by] ?? foreign(last.by);
    return [ago(last.time), " by ", last.reference ? refusalLink(last.reference, [cause]) : cause];
}
