// What if: what each limit would do to a message.

import { get, post, session } from "./api.js";
import { foreign, h, lines } from "./dom.js";
import { duration, number, time } from "./format.js";
import { facts, section, table } from "./parts.js";

/** The page holds a form, so it is not refreshed. */
export const isForm = true;

export function title() {
    return "What if";
}

export async function load({ abort: { signal } }) {
    const { listeners } = await get("/v1/status", {}, signal);
    return { listeners };
}

export function render(view, { listeners }) {
    return [section("What would happen to a message?",
        h("p", {}, "Weir asks its limits about a session with one message, as the command weir test does. Nothing is sent or counted."),
        session["may-act"] ? testForm(view, listeners) : h("p", { class: "empty" }, "This token may only read: a test needs a token that may act."),
        h("div", { "aria-live": "polite", "data-key": "result" }, view.state.result ?? null)),
    section("What would a limit have refused?",
        h("p", {}, "Weir tries a limit against the decision log, as if it alone had been enforced. Nothing is counted or changed."),
        session["may-act"] ? limitForm(view) : h("p", { class: "empty" }, "This token may only read: a trial needs a token that may act."),
        h("div", { "aria-live": "polite", "data-key": "trial result" }, view.state.trial ?? null))];
}

const EXAMPLE = `[[limit]]
name = "tried"
count = "recipients"
per = ["user"]
rate = "100 / 1h"
`;

function limitForm(view) {
    return h("form", { onsubmit: (event) => tryLimit(event, view), "data-key": "trial", "data-keep": true },
        h("p", {}, h("label", { for: "trial-limit" }, "Limit, as in weir.toml"),
            h("textarea", { id: "trial-limit", name: "limit", rows: 8, required: true, maxlength: 65536, spellcheck: "false", autocomplete: "off" }, EXAMPLE)),
        h("p", {}, h("label", { for: "trial-since" }, "Since"),
            h("input", { id: "trial-since", name: "since", autocomplete: "off", "aria-describedby": "hint-since" }),
            h("span", { id: "hint-since", class: "relative" }, "Such as 2026-03-01T10:00Z. Empty: the whole log.")),
        h("p", {}, h("button", { type: "submit", class: "confirm" }, "Try the limit")));
}

async function tryLimit(event, view) {
    event.preventDefault();
    const { limit, since } = Object.fromEntries(new FormData(event.target));
    view.state.trial = [h("p", { class: "empty" }, "Weir reads the decision log …")];
    view.update();
    try {
        view.state.trial = trialResult(await post("/v1/what-if", since.trim() ? { limit, since: since.trim() } : { limit }));
    } catch (error) {
        view.state.trial = [h("p", { class: "problem" }, "The limit was not tried."), lines(error.message, "Error")];
    }
    view.update();
}

function trialResult(answer) {
    const good = answer.refusals === 0;
    return [
        h("p", { class: good ? "verdict good" : "verdict" }, h("span", { "aria-hidden": "true" }, good ? "✓ " : "✗ "), foreign(answer.message)),
        facts([
            ["from", answer.first && time(answer.first)],
            ["to", answer.last && time(answer.last)],
            ["events", `${number(answer.events)}; the limit applied to ${number(answer.applied)}`],
            ["recipients", `${number(answer["recipients-refused"])} of ${number(answer.recipients)} refused`],
            ["messages", `${number(answer["messages-refused"])} of ${number(answer.messages)} refused`],
            ["delayed", answer.delayed > 0 && `${number(answer.delayed)} events, by ${duration(answer["delay-seconds"])} in all`],
        ]),
        table("Owners whose mail would have been refused", [
            { title: "owner", heading: true, cell: ({ owner }) => foreign(owner) },
            { title: "refusals", kind: "number", cell: ({ refused }) => number(refused) },
            { title: "first", cell: ({ first }) => time(first) },
            { title: "last", cell: ({ last }) => time(last) },
        ], answer.owners, { key: ({ owner }) => owner, empty: "No owner's mail would have been refused." }),
        answer["more-owners"] > 0 ? h("p", { class: "empty" }, `${number(answer["more-owners"])} more owners are left out.`) : null,
        h("ul", {}, [...answer.warnings, ...answer.notes].map((note) => h("li", {}, foreign(note)))),
    ].filter(Boolean);
}

const STAGES = ["connect", "auth", "mail", "rcpt", "data", "end"];

function testForm(view, listeners) {
    const input = (name, label, attributes = {}, hint = null) => h("p", {}, h("label", { for: `test-${name}` }, label),
        h("input", { id: `test-${name}`, name, autocomplete: "off", spellcheck: "false", "aria-describedby": hint && `hint-${name}`, ...attributes }),
        hint && h("span", { id: `hint-${name}`, class: "relative" }, hint));
    const select = (name, label, options) => h("p", {}, h("label", { for: `test-${name}` }, label),
        h("select", { id: `test-${name}`, name }, options.map(([value, words]) => h("option", { value }, words))));
    return h("form", { class: "grid", onsubmit: (event) => test(event, view), "data-key": "test", "data-keep": true },
        input("client", "Client's address", { required: true, value: view.parameters.get("client") ?? "" }),
        input("user", "User", { value: view.parameters.get("user") ?? "" }, "Empty: no login."),
        input("mail-from", "Envelope sender", {}, "<> is the null sender of bounces."),
        input("rcpt-to", "Recipients", {}, "Several addresses are separated by spaces."),
        input("size", "Size in octets", { type: "number", min: 0 }),
        input("helo", "Name in EHLO"),
        select("listener", "Listener", [...(listeners.length === 1 ? [] : [["", "choose"]]), ...listeners.map(({ name }) => [name, name])]),
        select("stage", "Last stage", [["", "whole session"], ...STAGES.map((stage) => [stage, stage])]),
        input("at", "At", {}, "Such as 2026-03-01T10:00Z. Empty: now."),
        select("tls", "Connection", [["true", "encrypted"], ["", "not encrypted"]]),
        h("p", {}, h("button", { type: "submit", class: "confirm" }, "Test")));
}

async function test(event, view) {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(event.target)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== ""));
    const request = { ...given, tls: given.tls === "true" };
    if (given.size) request.size = Number(given.size);
    if (given["rcpt-to"]) request["rcpt-to"] = given["rcpt-to"].split(/[\s,]+/);
    try {
        const { refused, message } = await post("/v1/test", request);
        view.state.result = [h("p", { class: refused ? "verdict" : "verdict good" }, h("span", { "aria-hidden": "true" }, refused ? "✗ " : "✓ "), refused ? "Something would be refused." : "All would pass."), lines(message)];
    } catch (error) {
        view.state.result = [h("p", { class: "problem" }, foreign(error.message))];
    }
    view.update();
}
