// Open sessions, page by page.

import { get } from "./api.js";
import { foreign, h } from "./dom.js";
import { ago, count, senderLink } from "./format.js";
import { table } from "./parts.js";

export function title() {
    return "Open sessions";
}

export function load({ parameters, abort: { signal } }) {
    return get("/v1/sessions", { count: 100, after: parameters.get("after") }, signal);
}

export function render(_, { total, sessions, next }) {
    return [
        h("p", { "data-key": "total" }, `${count(total, "session")}, the oldest first.`),
        table("Open sessions", [
            { title: "session", heading: true, cell: ({ session }) => h("code", {}, foreign(session)) },
            { title: "user", cell: ({ user }) => (user ? senderLink("user", user) : "no login") },
            { title: "client", cell: ({ client }) => senderLink("client", client) },
            { title: "listener", cell: ({ listener }) => foreign(listener) },
            { title: "since", cell: ({ since }) => ago(since) },
        ], sessions, { key: ({ session }) => session, empty: "No session is open." }),
        next && h("p", {}, h("a", { href: `#/sessions?after=${encodeURIComponent(next)}` }, "Next page")),
    ];
}
