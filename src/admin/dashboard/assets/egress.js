// Direct ways past Weir: the register, and the suspended clients.

import { ApiError, get } from "./api.js";
import { allowButton, denyButton, removeEntryButton } from "./acts.js";
import { foreign, h } from "./dom.js";
import { actor, ago, end } from "./format.js";
import { PAGE_ROWS, more, section, table } from "./parts.js";

export const events = "act";

const RULES = { out: "may send", in: "may receive", "out-and-in": "may send and receive", quarantine: "quarantined" };

const STATES = { registered: "open, registered", quarantined: "closed", unregistered: "not registered" };

export function title() {
    return "Direct ways";
}

export async function load({ state, abort: { signal } }) {
    const answer = await get("/v1/egress", { known: state.register?.revision }, signal);
    // Without changes, the answer has only its revision. A large register is not read again.
    if (answer.entries) state.register = answer;
    if (state.address) state.checked = await checkAddress(state.address, signal);
    return state.register;
}

async function checkAddress(address, signal) {
    try {
        return result(await get("/v1/egress/check", { address }, signal));
    } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        return h("p", { class: "problem" }, foreign(error.message));
    }
}

export function render(view, { entries, suspensions }) {
    const common = [
        { title: "since", cell: ({ since }) => ago(since) },
        { title: "until", cell: ({ until }) => until.startsWith("9999-") ? "removed" : end(until) },
        { title: "by, because", kind: "wide", cell: ({ by, reason }) => [actor(by), ": ", foreign(reason)] },
    ];
    const shown = entries.slice(0, view.state.shown ?? PAGE_ROWS);
    const showMore = () => {
        view.state.shown = shown.length + PAGE_ROWS;
        view.update();
    };
    return [
        h("p", { "data-key": "hint" }, "Who may connect to mail servers outside without Weir, or receive mail from there. The edge of the site gets its rules from the command weir egress."),
        h("p", { "data-key": "acts" }, allowButton(), " ", denyButton()),
        checkForm(view),
        section("Register", table("Register", [
            { title: "network", heading: true, cell: ({ network }) => foreign(network) },
            { title: "direct ways", cell: ({ rule }) => RULES[rule] ?? rule },
            { title: "responsible", cell: ({ owner }) => owner ? foreign(owner) : "–" },
            ...common,
            { title: "acts", cell: removeEntryButton },
        ], shown, { key: ({ network, rule }) => `${network} ${rule === "quarantine"}`, empty: "No network is registered or quarantined." }),
        more(shown.length, entries.length, showMore)),
        section("Suspended clients", table("Suspended clients", [
            { title: "client", heading: true, cell: ({ network }) => h("a", { href: `#/sender/${encodeURIComponent(`client=${network}`)}` }, foreign(network)) },
            ...common,
        ], suspensions, { key: ({ network }) => network, empty: "No client is suspended." })),
    ];
}

function checkForm(view) {
    const submit = async (event) => {
        event.preventDefault();
        view.state.address = event.target.elements.address.value.trim();
        view.state.checked = await checkAddress(view.state.address, view.abort.signal);
        view.update();
    };
    return [
        h("form", { class: "inline", onsubmit: submit, "data-key": "check", "data-keep": true },
            h("span", {}, h("label", { for: "address" }, "Address"), h("input", { id: "address", name: "address", required: true, autocomplete: "off", spellcheck: "false" })),
            h("button", { type: "submit" }, "Check")),
        h("div", { "aria-live": "polite", "data-key": "checked" }, view.state.checked ?? null),
    ];
}

function result(check) {
    const way = (name, state, entry) => h("p", {}, `${name}: ${STATES[state] ?? state}`,
        entry ? [" by ", foreign(entry.network), entry.owner ? [", ", foreign(entry.owner)] : "", ": ", foreign(entry.reason)] : "");
    return [h("p", {}, foreign(check.address)), way("to mail servers outside", check.out, check["out-entry"]), way("from mail servers outside", check.in, check["in-entry"])];
}
