// The audit trail: acts of administrators and limits.

import { get } from "./api.js";
import { foreign, h } from "./dom.js";
import { actor, end, limitLink, owner, time } from "./format.js";
import { PAGE_ROWS, more, table } from "./parts.js";

export const events = "act";

export function title() {
    return "Audit";
}

export async function load({ state, abort: { signal } }) {
    const { records } = await get("/v1/audit", { last: (state.rows ?? PAGE_ROWS) + 1 }, signal);
    return records.reverse();
}

export function render(view, records) {
    const rows = view.state.rows ?? PAGE_ROWS;
    return [
        h("p", { "data-key": "hint" }, "Acts of administrators and limits, the newest first."),
        table("Audit trail", [
            { title: "time", cell: ({ at }) => time(at) },
            { title: "act", heading: true, cell: ({ audit }) => audit },
            { title: "sender", cell: (row) => (row.audit === "reloaded" ? "–" : owner(row.owner)) },
            { title: "by", cell: ({ by }) => actor(by) },
            { title: "because", kind: "wide", cell: ({ reason }) => foreign(reason) },
            { title: "what", kind: "wide", cell: details },
        ], records.slice(0, rows), { key: (row) => `${row.at} ${row.audit} ${JSON.stringify(row.owner)} ${row.limit}`, empty: "No act is recorded." }),
        records.length > rows && more(rows, records.length + PAGE_ROWS, () => {
            view.state.rows = rows + PAGE_ROWS;
            view.reload();
        }),
    ];
}

function details({ limit, rate, until, was }) {
    return [limit ? [limitLink(limit), " "] : null, rate ? [foreign(rate), " "] : null, until ? ["until ", end(until), " "] : null, was ? ["was ", foreign(was)] : null];
}
