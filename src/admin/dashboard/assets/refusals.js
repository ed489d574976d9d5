// Stored refusals, and the explanation of one.

import { get } from "./api.js";
import { foreign, h, lines, visible } from "./dom.js";
import { fieldLink, limitLink, number, senderLink, time } from "./format.js";
import { facts, modeMark, refusals as refusalTable, section, table } from "./parts.js";

export function title({ name, part }) {
    return name === "refusal" ? `Refusal ${part}` : "Refusals";
}

export async function load(view) {
    return view.name === "refusal" ? loadOne(view) : loadList(view);
}

async function loadOne({ part, state, abort: { signal } }) {
    // What would happen now is computed for each answer, so it is asked for once.
    state.answer ??= await get(`/v1/refusals/${encodeURIComponent(part)}`, {}, signal);
    return state.answer;
}

function loadList({ parameters, abort: { signal } }) {
    return get("/v1/refusals", { count: 50, ...Object.fromEntries(parameters) }, signal);
}

export function render(view, data) {
    return view.name === "refusal" ? renderOne(data) : renderList(view, data);
}

function renderList({ parameters }, data) {
    const given = [...parameters].filter(([name]) => ["user", "client", "limit", "since"].includes(name));
    const isShadow = parameters.get("shadow") === "true";
    const older = new URLSearchParams(parameters);
    if (data.next) older.set("before", data.next);
    return [
        filterForm(parameters),
        h("p", { "data-key": "words" },
            isShadow && h("strong", {}, "Nothing of this was refused: limits in shadow or soft mode would have refused it. "),
            given.length > 0 && ["Those with ", given.map(([name, value]) => [`${name} `, foreign(value), " "])],
            given.length > 0 || isShadow ? h("a", { href: "#/refusals" }, "Show all") : "The newest first."),
        refusalTable("Refusals", data, "No such refusal is stored."),
        data.next && h("p", {}, h("a", { href: `#/refusals?${older}` }, "Older refusals")),
    ];
}

function filterForm(parameters) {
    const input = (name, label) => h("span", {}, h("label", { for: `filter-${name}` }, label), h("input", { id: `filter-${name}`, name, value: parameters.get(name) ?? "", autocomplete: "off", spellcheck: "false" }));
    const submit = (event) => {
        event.preventDefault();
        const given = [...new FormData(event.target)].filter(([, value]) => value.trim() !== "");
        location.hash = `#/refusals?${new URLSearchParams(given)}`;
    };
    return h("form", { class: "inline", onsubmit: submit, "data-key": `filters ${parameters}` },
        input("user", "User"), input("client", "Client"), input("limit", "Limit"),
        parameters.get("shadow") === "true" && h("input", { type: "hidden", name: "shadow", value: "true" }), h("button", { type: "submit" }, "Filter"));
}

function renderOne({ message, decision, coalesced, remedies, changes, now }) {
    return [
        section("What happened", happened(decision, coalesced)),
        section("What helps", remedyList(remedies ?? [], now)),
        changes?.length > 0 && section("Changed since", h("ul", {}, changes.map((change) => h("li", {}, foreign(change))))),
        section("Limits that measured this", limitTable(decision.limits ?? [])),
        section("Full explanation", lines(message)),
    ];
}

function happened(decision, coalesced) {
    const { reply, suspension } = decision;
    return facts([
        ["Time", time(decision.time)],
        ["Times", coalesced && [`${number(coalesced.times)}, the last `, time(coalesced.last), coalesced["several-owners"] ? "; of several senders" : ""]],
        ["Reply", reply && foreign(`${reply.code} ${reply.text}`)],
        ["Because of", decision.limit ? ["limit ", limitLink(decision.limit)] : suspension ? ["a suspension by ", foreign(suspension.by), ": ", foreign(suspension.reason)] : foreign(decision.outcome)],
        ["Stage", decision.stage],
        ["User", decision.user && [senderLink("user", decision.user), decision.authenticated ? "" : " (not logged in)"]],
        ["Client", decision.client && [senderLink("client", decision.client), decision.country ? ` ${decision.country}` : "", decision.asn ? ` ${decision.asn}` : ""]],
        ["EHLO name", decision.helo && foreign(decision.helo)],
        ["From", decision.from && (decision.from === "<>" ? "<>" : senderLink("sender", decision.from))],
        ["To", decision.to && foreign(decision.to)],
        ["Recipients before", decision.recipients?.length > 0 && decision.recipients.map((address, n) => [n > 0 ? ", " : "", foreign(address)])],
    ]);
}

function remedyList(remedies, now) {
    const first = now?.passes ? h("p", {}, "The same would pass now.") : null;
    if (remedies.length === 0) return first ?? h("p", { class: "empty" }, "No single remedy helps.");
    return [first, h("ul", { class: "remedies" }, remedies.map(({ text, until, commands }) => h("li", {}, until ? ["wait until ", time(until)] : foreign(text),
        (commands ?? []).map((command) => h("pre", { tabindex: "0", role: "region", "aria-label": `Command ${visible(command)}` }, foreign(command))))))];
}

function limitTable(rows) {
    return table("Limits that measured this", [
        { title: "limit", heading: true, cell: (row) => [limitLink(row.limit), row.rate ? [" ", foreign(row.rate)] : null, " ", modeMark(row.mode)] },
        { title: "counted per", cell: (row) => (row.budget?.length > 0 ? row.budget.map((field, n) => [n > 0 ? " + " : "", fieldLink(field)]) : "everybody") },
        { title: "before", kind: "number", cell: (row) => number(row.level) },
        { title: "amount", kind: "number", cell: (row) => number(row.amount) },
        { title: "allowed", kind: "number", cell: (row) => number(row.allowed) },
        { title: "decision", cell: (row) => [row.refused ? "refused" : "passed", row.action ? [": ", foreign(row.action)] : null] },
    ], rows, { key: (row) => `${row.limit} ${row.rate} ${row.budget}`, empty: "No limit measured this." });
}
