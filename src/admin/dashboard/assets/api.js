// Requests to the admin API, with the cookie of the session and, for acts, its CSRF token.

/** The session: `name`, `may-act`, `csrf`, `version`. */
export let session = null;

/** An answer of Weir that is an error. */
export class ApiError extends Error {
    constructor(status, { code, message, doubts }) {
        super(message);
        this.status = status;
        this.code = code;
        this.doubts = doubts ?? [];
    }
}

/** Weir did not answer. */
export class Unreachable extends Error {}

/** Reads the session. Goes to the login form if there is none. */
export async function begin() {
    session = await request("GET", "/session");
    return session;
}

export function get(path, parameters = {}, signal = undefined) {
    return request("GET", path + query(parameters), undefined, signal);
}

export function post(path, body) {
    return request("POST", path, body);
}

export function remove(path, parameters) {
    return request("DELETE", path + query(parameters));
}

/** Returns the answer, or `{unavailable: MESSAGE}` if Weir cannot read these records: the page shows its other parts. */
export async function getIfAvailable(path, parameters, signal) {
    try {
        return await get(path, parameters, signal);
    } catch (error) {
        if (error instanceof ApiError && error.status === 503) return { unavailable: error.message };
        throw error;
    }
}

export async function logOut() {
    await request("POST", "/logout").catch(() => {});
    location.replace("/login");
}

function query(parameters) {
    const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
    return given.length > 0 ? `?${new URLSearchParams(given)}` : "";
}

async function request(method, path, body, signal) {
    const headers = { accept: "application/json" };
    if (method !== "GET") headers["weir-csrf"] = session?.csrf ?? "";
    if (body !== undefined) headers["content-type"] = "application/json";
    let answer;
    try {
        answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Unreachable("Weir does not answer");
    }
    if (answer.status === 401) {
        location.assign(`/login${location.hash}`);
        throw new ApiError(401, { code: "unauthorized", message: "the session has ended" });
    }
    if (answer.status === 204) return null;
    const value = await answer.json().catch(() => null);
    if (signal?.aborted) throw signal.reason;
    if (answer.ok && value !== null) return value;
    if (answer.ok) throw new Unreachable("the answer of Weir is incomplete");
    throw new ApiError(answer.status, value?.error ?? { code: "unavailable", message: `HTTP status ${answer.status}` });
}
