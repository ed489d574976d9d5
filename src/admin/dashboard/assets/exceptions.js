// Grants and suspensions in force.

import { get } from "./api.js";
import { releaseButton, revokeButton } from "./acts.js";
import { foreign, h } from "./dom.js";
import { actor, ago, end, limitLink, owner, ownerKey } from "./format.js";
import { leniency, section, table } from "./parts.js";

export const events = "act";

export function title() {
    return "Grants and suspensions";
}

export function load({ abort: { signal } }) {
    return get("/v1/exceptions", {}, signal);
}

export function render(_, { exceptions }) {
    const of = (kind) => exceptions.filter(({ exception }) => exception === kind);
    const common = [
        { title: "since", cell: ({ since }) => ago(since) },
        { title: "until", cell: ({ until }) => end(until) },
        { title: "by, because", kind: "wide", cell: (row) => [actor(row.by), ": ", foreign(row.reason), leniency(row)] },
    ];
    return [
        h("p", { "data-key": "hint" }, "To suspend a sender or to grant more, open the sender's page, for example from ", h("a", { href: "#/senders" }, "the top senders"), ", or enter it here."),
        openForm(),
        section("Suspensions", table("Suspensions", [
            { title: "sender", heading: true, cell: (row) => owner(row.owner) }, ...common,
            { title: "acts", cell: (row) => releaseButton(row.owner) },
        ], of("suspension"), { key: (row) => ownerKey(row.owner), empty: "No sender is suspended." })),
        section("Grants", table("Grants", [
            { title: "sender", heading: true, cell: (row) => owner(row.owner) },
            { title: "limit", cell: ({ limit }) => limitLink(limit) },
            { title: "rate", cell: (row) => [foreign(row.rate), row["without-effect"] ? h("span", { class: "mark" }, "no effect: ", foreign(row["without-effect"])) : null] },
            ...common,
            { title: "acts", cell: revokeButton },
        ], of("grant"), { key: (row) => `${row.limit} ${ownerKey(row.owner)}`, empty: "No grant is in force." })),
    ];
}

function openForm() {
    const submit = (event) => {
        event.preventDefault();
        const { kind, name } = event.target.elements;
        location.hash = `#/sender/${encodeURIComponent(`${kind.value}=${name.value.trim()}`)}`;
    };
    return h("form", { class: "inline", onsubmit: submit, "data-key": "open", "data-keep": true },
        h("span", {}, h("label", { for: "kind" }, "Kind"), h("select", { id: "kind", name: "kind" },
            ["user", "client", "sender", "user-domain"].map((kind) => h("option", { value: kind }, kind)))),
        h("span", {}, h("label", { for: "name" }, "Name or address"), h("input", { id: "name", name: "name", required: true, autocomplete: "off", spellcheck: "false" })),
        h("button", { type: "submit" }, "Open"));
}
