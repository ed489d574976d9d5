// What if: what each limit would do to a message.

import { get, post, session } from "./api.js";
import { foreign, h, lines } from "./dom.js";
import { section } from "./parts.js";

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
    return section("What would happen to a message?",
        h("p", {}, "Weir asks its limits about a session with one message, as the command weir test does. Nothing is sent or counted."),
        session["may-act"] ? testForm(view, listeners) : h("p", { class: "empty" }, "This token may only read: a test needs a token that may act."),
        h("div", { "aria-live": "polite", "data-key": "result" }, view.state.result ?? null));
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
