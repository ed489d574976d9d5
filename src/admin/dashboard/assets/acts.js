// Acts of the administrator: each has a dialog that says what happens, and asks for a reason.

import { ApiError, post, remove, session } from "./api.js";
import { foreign, h, visible } from "./dom.js";
import { ownerKey } from "./format.js";

const DURATIONS = [["1 hour", 3_600], ["8 hours", 28_800], ["1 day", 86_400], ["7 days", 604_800], ["30 days", 2_592_000]];

const REASONS = ["password stolen", "sends spam", "asked by the user", "large mailing, agreed", "false alarm"];

/** Returns a button that opens a dialog; null if the token may only read. */
function button(words, kind, open, about) {
    if (!session?.["may-act"]) return null;
    return h("button", { type: "button", class: kind, onclick: open, "aria-haspopup": "dialog" }, words, about ? h("span", { class: "unseen" }, ` ${visible(about)}`) : "");
}

/** Suspends a user, client, sender or domain of users. `owner` is `{user: "alice"}`. */
export function suspendButton(owner) {
    const key = ownerKey(owner);
    return button("Suspend …", "danger", () => ask({
        title: ["Suspend ", foreign(key)],
        words: "From now on Weir refuses the mail of this sender, in open sessions, too. You can release the sender at any time.",
        fields: [
            choice("for-seconds", "For", DURATIONS, 86_400),
            tick("strict", "Strict: refuse mail to all, also to the recipients that [suspensions] allows"),
            ...(owner.user === undefined ? [] : [tick("keep", "Stay suspended when the user gets a new password")]),
        ],
        about: "Reason, which the sender reads in replies, and the audit trail keeps",
        verb: "Suspend",
        send: ({ reason, force, strict, keep, "for-seconds": seconds }) =>
            post("/v1/suspensions", { owner: key, "for-seconds": Number(seconds), reason, force, strict: strict && true, keep: keep && true }),
    }), key);
}

export function releaseButton(owner) {
    const key = ownerKey(owner);
    return button("Release …", "", () => ask({
        title: ["Release ", foreign(key)],
        words: "The suspension ends now. The sender's limits stay in force.",
        verb: "Release",
        send: ({ reason }) => remove("/v1/suspensions", { owner: key, reason }),
    }), key);
}

/** Grants a budget another rate. `row` is a budget, with `limit`, `owner` and `rate`. */
export function grantButton(row) {
    const key = ownerKey(row.owner);
    return button("Grant more …", "", () => ask({
        title: ["Grant ", foreign(key), " another rate of ", foreign(row.limit)],
        words: ["The rate in force is ", foreign(row.rate), ". The grant replaces it until the grant ends."],
        fields: [
            field("rate", "Rate", { value: doubled(row.rate), required: true, pattern: ".*\\S.*" }),
            choice("for-seconds", "For", DURATIONS, 28_800),
        ],
        verb: "Grant",
        send: ({ rate, reason, force, "for-seconds": seconds }) =>
            post("/v1/grants", { limit: row.limit, key, rate, "for-seconds": Number(seconds), reason, force }),
    }), `${row.limit} ${key}`);
}

/** Returns a proposal for a grant: `1000 / 1d` becomes `2000 / 1d`. */
function doubled(rate) {
    return rate.replace(/^\d+/, (amount) => String(2 * Number(amount)));
}

export function revokeButton(grant) {
    const key = ownerKey(grant.owner);
    return button("Revoke …", "", () => ask({
        title: ["Revoke the grant of ", foreign(key), " for ", foreign(grant.limit)],
        words: "The limit's own rate is in force again at once.",
        verb: "Revoke",
        send: ({ reason }) => remove("/v1/grants", { limit: grant.limit, key, reason }),
    }), `${grant.limit} ${key}`);
}

export function resetButton(row) {
    const key = ownerKey(row.owner);
    return button("Reset …", "", () => ask({
        title: ["Reset ", foreign(row.limit), " of ", foreign(key)],
        words: "The budget becomes empty, as if nothing had been sent.",
        verb: "Reset",
        send: ({ reason, force }) => post("/v1/resets", { limit: row.limit, key, reason, force }),
    }), `${row.limit} ${key}`);
}

/** Terms of entries of the register; 0: until removed. */
const TERMS = [...DURATIONS, ["1 year", 31_536_000], ["until removed", 0]];

const networkField = field("network", "Address or network", { required: true, autocomplete: "off", spellcheck: "false", pattern: ".*\\S.*" });

function entryTerm({ "for-seconds": seconds }) {
    return Number(seconds) === 0 ? { "until-removed": true } : { "for-seconds": Number(seconds) };
}

/** Registers a network for direct ways past Weir. */
export function allowButton() {
    return button("Register a network …", "", () => ask({
        title: "Register a network",
        words: "Its mail servers may then connect directly, as soon as the edge has its new rules.",
        fields: [
            networkField,
            choice("ways", "Direct ways", [["to mail servers outside", "out"], ["from mail servers outside", "in"], ["both", "out-and-in"]], "out"),
            field("owner", "Who is responsible", { required: true, maxlength: 200, autocomplete: "off", pattern: ".*\\S.*" }),
            choice("for-seconds", "For", TERMS, 31_536_000),
        ],
        verb: "Register",
        send: ({ network, ways, owner, reason, force, ...term }) =>
            post("/v1/egress/registrations", { network, ways, owner, reason, force, ...entryTerm(term) }),
    }));
}

/** Quarantines a network. */
export function denyButton() {
    return button("Quarantine a network …", "danger", () => ask({
        title: "Quarantine a network",
        words: "Both of its direct ways are closed, also those of registered addresses, as soon as the edge has its new rules.",
        fields: [networkField, choice("for-seconds", "For", TERMS, 86_400)],
        verb: "Quarantine",
        send: ({ network, reason, force, ...term }) => post("/v1/egress/quarantines", { network, reason, force, ...entryTerm(term) }),
    }));
}

/** Removes an entry of the register. */
export function removeEntryButton({ network, rule }) {
    const isQuarantine = rule === "quarantine";
    return button("Remove …", "", () => ask({
        title: [isQuarantine ? "End the quarantine of " : "Remove the registration of ", foreign(network)],
        words: isQuarantine ? "Its registrations are in force again." : "Its direct way is closed as soon as the edge has its new rules.",
        verb: "Remove",
        send: ({ reason }) => remove(`/v1/egress/${isQuarantine ? "quarantines" : "registrations"}`, { network, reason }),
    }), network);
}

function field(name, label, attributes) {
    return { name, make: (id) => [h("label", { for: id }, label), h("input", { id, name, ...attributes })] };
}

function tick(name, label) {
    return { name, make: (id) => h("span", { class: "tick" }, h("input", { id, name, type: "checkbox", value: "true" }), " ", h("label", { for: id }, label)) };
}

function choice(name, label, options, chosen) {
    const make = (id) => [h("label", { for: id }, label), h("select", { id, name },
        options.map(([words, value]) => h("option", { value, selected: value === chosen }, words)))];
    return { name, make };
}

/** Opens a dialog. `about` is the label of the reason. `send` gets the values of the form, and returns the promise of the server's answer. */
export function ask({ title, words, fields = [], about = "Reason, for the audit trail", verb, send }) {
    const alert = h("div", { class: "alert", role: "alert" });
    const confirm = h("button", { type: "submit", class: "confirm" }, verb);
    const reasons = h("datalist", { id: "reasons" }, REASONS.map((value) => h("option", { value })));
    const form = h("form", { method: "dialog" },
        h("h2", { id: "dialog-title" }, title),
        h("p", {}, words),
        h("div", { class: "fields" }, fields.map(({ name, make }) => make(`field-${name}`)),
            h("label", { for: "field-reason" }, about),
            h("input", { id: "field-reason", name: "reason", required: true, pattern: ".*\\S.*", maxlength: 500, list: "reasons", autocomplete: "off", autofocus: true, title: "a reason" }), reasons),
        alert,
        h("p", { class: "buttons" }, confirm, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel")));
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    const opener = document.activeElement;
    const state = { force: false };
    form.onsubmit = async (event) => {
        event.preventDefault();
        confirm.disabled = true;
        try {
            const answer = await send({ ...Object.fromEntries(new FormData(form)), force: state.force });
            dialog.close();
            announce(answer?.message ?? "Done.");
            window.dispatchEvent(new Event("weir-acted"));
        } catch (error) {
            showError(error, alert, confirm, verb, state);
        } finally {
            confirm.disabled = false;
        }
    };
    dialog.addEventListener("close", () => {
        dialog.remove();
        opener?.focus?.();
    });
    document.body.append(dialog);
    dialog.showModal();
}

function showError(error, alert, confirm, verb, state) {
    const doubts = error instanceof ApiError ? error.doubts : [];
    alert.replaceChildren(h("p", {}, foreign(error.message)), h("ul", {}, doubts.map((doubt) => h("li", {}, foreign(doubt)))));
    if (error.code === "doubtful") {
        state.force = true;
        confirm.textContent = `${verb} all the same`;
    }
}

let hiding;

/** Shows a message for a while, and tells it to screen readers. */
export function announce(message) {
    const place = document.getElementById("announcement");
    place.textContent = message.split("\n").map(visible).join(" ").trim();
    clearTimeout(hiding);
    hiding = setTimeout(() => (place.textContent = ""), 12_000);
}
