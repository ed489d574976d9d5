// Numbers, durations, times and names in the reader's words.

import { foreign, h } from "./dom.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** Returns a number with separators: `12,345`; numbers under 10 with one decimal. */
export function number(value) {
    if (value === null || value === undefined) return "–";
    return Math.abs(value) < 10 ? tenth.format(value) : whole.format(value);
}

/** Returns octets with a unit: `1.2 MB`. */
export function octets(value) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let n = 0;
    while (value >= 1000 && n < units.length - 1) [value, n] = [value / 1000, n + 1];
    return `${number(value)} ${units[n]}`;
}

/** Returns a duration in its largest two units: `2 h 5 min`. */
export function duration(seconds) {
    let left = Math.max(0, Math.round(seconds));
    const parts = [];
    for (const [unit, length] of [["y", 31_557_600], ["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]]) {
        const count = Math.floor(left / length);
        if (count > 0) parts.push(`${count} ${unit}`);
        left -= count * length;
        if (parts.length === 2 || (parts.length === 1 && unit === "min")) break;
    }
    return parts.join(" ") || "0 s";
}

const dated = new Intl.DateTimeFormat("en-GB", {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
});
const zone = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" });

/** Returns the reader's time zone: `CET`. */
export function zoneName() {
    return zone.formatToParts(new Date()).find((part) => part.type === "timeZoneName")?.value ?? "";
}

/** Returns the distance of a time from now: `5 min ago`, `in 2 h`. */
export function relative(time) {
    const seconds = (new Date(time) - Date.now()) / 1000;
    if (Math.abs(seconds) < 5) return "now";
    return seconds < 0 ? `${duration(-seconds)} ago` : `in ${duration(seconds)}`;
}

/** Returns a time of the server as an element: date and time in the reader's zone, and the distance from now. */
export function time(at) {
    if (!at) return h("span", {}, "–");
    const element = h("time", { datetime: at }, dated.format(new Date(at)), " ");
    element.append(h("span", { class: "relative" }, relative(at)));
    return element;
}

/** Returns the end of a grant or a suspension; the end of the year 9999 means that only a release ends it. */
export function end(at) {
    return at?.startsWith("9999-") ? h("span", {}, "released") : time(at);
}

/** Returns a time as an element with the distance from now first; its title has date and time. */
export function ago(at) {
    if (!at) return h("span", {}, "–");
    return h("time", { datetime: at, title: `${dated.format(new Date(at))} ${zoneName()}` }, relative(at));
}

/** Returns the text of an owner, such as `user=alice,client=192.0.2.7`: the key of its budgets. */
export function ownerKey(owner) {
    const fields = Object.entries(owner ?? {});
    if (fields.length === 0) return "all";
    return fields.map(([field, value]) => `${field}=${value}`).join(",");
}

/** Fields of owners that have a page, with their words. */
const PAGED = { user: "user", client: "client", sender: "sender", "user-domain": "domain of users" };

/** Returns an owner as an element, with a link for each field that has a page. */
export function owner(fields) {
    const entries = Object.entries(fields ?? {});
    if (entries.length === 0) return h("span", {}, "everybody");
    return h("span", {}, entries.map(([field, value], n) => [n > 0 ? " + " : "", senderLink(field, value)]));
}

/** Returns the address of a sender's page. */
export function senderAddress(field, value) {
    return `#/sender/${encodeURIComponent(`${field}=${value}`)}`;
}

/** Returns a link to the page of a user, client, sender or domain; without a page for this field, only its text. */
export function senderLink(field, value) {
    // The field of a network has the widths of networks, too: `client/24/64`.
    const [kind] = field.split("/");
    const words = [h("span", { class: "field" }, `${PAGED[kind] ?? field} `), foreign(value)];
    return PAGED[kind] ? h("a", { href: senderAddress(kind, value) }, words) : h("span", {}, words);
}

/** Returns a link to the page of a field of an owner, such as `user=alice`. */
export function fieldLink(text) {
    const [field, ...value] = text.split("=");
    return senderLink(field, value.join("="));
}

/** Returns which administrator, token or limit has acted. */
export function actor(by) {
    return by.startsWith("limit ") ? ["limit ", limitLink(by.slice("limit ".length))] : foreign(by);
}

/** Returns a link to a limit. */
export function limitLink(name) {
    if (!name) return "";
    return h("a", { href: `#/limits/${encodeURIComponent(name)}` }, foreign(name));
}

/** Returns a link to the explanation of a refusal. */
export function refusalLink(reference, text) {
    return h("a", { href: `#/refusal/${encodeURIComponent(reference)}` }, text ?? h("code", {}, foreign(reference)));
}

/** Returns `1 message`, `2 messages`. */
export function count(value, noun, plural = `${noun}s`) {
    return `${number(value)} ${value === 1 ? noun : plural}`;
}
