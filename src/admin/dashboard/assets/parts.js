// Parts that several pages use: tables, level bars, lists of refusals.

import { foreign, h } from "./dom.js";
import { ago, duration, limitLink, number, refusalLink, senderLink, time } from "./format.js";

/** Rows of a table before its reader asks for more, and rows that each request for more adds. */
export const PAGE_ROWS = 100;

/**
 * Returns a table in a region that scrolls sideways. `columns` are `{title, cell(row), kind, sort, sorted}`: `kind`
 * `number` aligns right, `sort` is called when the title is chosen. `key(row)` identifies a row over updates.
 */
export function table(name, columns, rows, { key, empty = "None." } = {}) {
    if (rows.length === 0) return h("p", { class: "empty" }, empty);
    const head = columns.map(({ title, kind, sort, sorted }) =>
        h("th", { role: "columnheader", scope: "col", class: kind, "aria-sort": sorted ? "descending" : null },
            sort ? h("button", { type: "button", class: "sort", onclick: sort }, title, h("span", { "aria-hidden": "true" }, sorted ? " ▼" : "")) : title));
    const body = rows.map((row, n) =>
        h("tr", { role: "row", "data-key": key ? `row ${key(row)}` : `row ${n}` },
            columns.map(({ title, kind, cell, heading }) =>
                h(heading ? "th" : "td", { role: heading ? "rowheader" : "cell", class: kind, "data-title": title, scope: heading ? "row" : null }, h("div", {}, cell(row))))));
    // The roles are stated, because on phones the style makes a card of each row, and browsers then drop them.
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name },
        h("table", { role: "table", "aria-label": name },
            h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), h("tbody", { role: "rowgroup" }, body)));
}

/** Returns a button for more rows, or null if `shown` are all. */
export function more(shown, total, show) {
    if (shown >= total) return null;
    const next = Math.min(PAGE_ROWS, total - shown);
    return h("p", {}, h("button", { type: "button", class: "more", onclick: show }, `Show ${next} more`), ` ${number(shown)} of ${number(total)} are shown.`);
}

/** Returns whether a budget has a level, and a maximum with which to compare it. */
export function hasLevel({ level, allowed, applies }) {
    return typeof level === "number" && typeof allowed === "number" && applies?.applies !== "no";
}

/** Returns the level of a budget as a share of what is allowed. A budget that lets nothing more pass is full. */
export function share({ level, allowed, "wait-seconds": wait }) {
    if (wait !== 0) return Math.max(1, allowed > 0 ? level / allowed : 1);
    return allowed > 0 ? level / allowed : 0;
}

/** Returns a bar for the level of a budget, with its share in per cent. */
export function bar(row, label) {
    const part = share(row);
    const percent = Math.floor(100 * part);
    const state = part >= 1 ? "full" : part >= 0.8 ? "near" : "low";
    return h("span", { class: `bar ${state}` },
        h("span", { class: "track", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.min(percent, 100), "aria-valuetext": `${percent} %` },
            h("span", { class: "fill", width: Math.min(1, part) })),
        h("span", { class: "percent" }, part >= 1 ? "full" : `${percent} %`));
}

/** Returns a sentence about a budget: how full it is, and when more passes. */
export function budgetWords(row) {
    if (row.applies?.applies === "no") return ["does not apply: ", foreign(row.applies.why)];
    if (row.level === null || row.level === undefined) return `counted anew within each ${row.rate.includes("message") ? "message" : "connection"}: ${row.rate}`;
    const depends = row.applies?.applies === "depends" ? ["; applies depending on ", foreign(row.applies.on)] : "";
    if (row.allowed === null || row.allowed === undefined) return [`${number(row.level)} ${row.unit}, no maximum`, depends];
    const used = `${number(row.level)} of ${number(row.allowed)} ${row.unit}`;
    const wait = row["wait-seconds"];
    if (wait > 0) {
        const until = new Date(Date.now() + 1000 * wait).toISOString();
        return [`${used}; full, the next one passes in ${duration(wait)}: `, time(until), depends];
    }
    if (wait === null || wait === undefined) return [`${used}; full, and no wait helps`, depends];
    return [`${used}; ${number(row.room ?? row.allowed - row.level)} more pass now`, depends];
}

/** Returns the mode of a limit as a mark; none if the limit is enforced. */
export function modeMark(mode) {
    const words = { shadow: "shadow: refuses nothing", soft: "soft: only warns" };
    return words[mode] ? h("span", { class: "mark" }, words[mode]) : null;
}

/** Returns the sender of a decision: its user, else its client. */
export function senderOf(decision) {
    if (decision.user) return senderLink("user", decision.user);
    return decision.client ? senderLink("client", decision.client) : "–";
}

function cause(decision) {
    if (decision.outcome === "suspended") return h("a", { href: "#/exceptions" }, "suspended");
    // A limit in shadow or soft mode would have refused this.
    if (decision.outcome === "would-refuse") return ["it passed: limit ", limitLink(decision.limit), " is not enforced"];
    if (decision.limit) return ["limit ", limitLink(decision.limit)];
    return decision.outcome === "sender-mismatch" ? "may not send as this address" : foreign(decision.outcome);
}

/** Returns a note that Weir cannot read these records. */
export function unreadable(message) {
    return h("p", { class: "problem" }, foreign(message));
}

/** Returns a table of the stored refusals of an answer, each with its cause and a link to its explanation. */
export function refusals(name, { refusals: rows, unavailable }, empty, { ofOneSender } = {}) {
    if (unavailable) return unreadable(unavailable);
    const sender = { title: "sender", heading: true, cell: ({ decision }) => senderOf(decision) };
    return table(name, [
        { title: "time", cell: ({ decision, coalesced }) => ago(coalesced?.last ?? decision.time) },
        ...(ofOneSender ? [] : [sender]),
        { title: "because", cell: ({ decision }) => cause(decision) },
        { title: "from, to", kind: "aside", cell: ({ decision }) => [decision.from ? foreign(decision.from) : "–", decision.to ? [" → ", foreign(decision.to)] : null] },
        { title: "reply", kind: "wide", cell: ({ decision, coalesced }) => [
            decision.reply ? foreign(`${decision.reply.code} ${decision.reply.text}`) : "–",
            coalesced ? h("span", { class: "mark" }, `${number(coalesced.times)} times`) : null] },
        { title: "explanation", cell: ({ decision }) => (decision.reference ? refusalLink(decision.reference, ["why", h("span", { class: "unseen" }, ` ${decision.reference}`)]) : "–") },
    ], rows, { key: ({ id, decision }) => id ?? decision.reference ?? `${decision.session} ${decision.time}`, empty });
}

/** Returns what a suspended owner may still do, and what ends the suspension early; null if there is nothing to tell. */
export function leniency({ "allowed-recipients": allowed, "known-to": known, "ends-on-new-password": ends }) {
    const words = [known ? "locked: may write to recipients known before" : null, allowed?.length > 0 ? ["may write to ", foreign(allowed.join(", "))] : null, ends ? "a new password ends it" : null].filter(Boolean);
    return words.length > 0 ? h("span", { class: "relative" }, " (", words.map((word, n) => [n > 0 ? "; " : "", word]), ")") : null;
}

/** Returns a section with a heading. */
export function section(title, ...content) {
    return h("section", { "data-key": `section ${title}` }, h("h2", {}, title), content);
}

/** Returns a list of terms with their descriptions; entries without a description are left out. */
export function facts(entries) {
    const given = entries.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
    return h("dl", { class: "facts" }, given.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}
