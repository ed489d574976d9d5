//! Headers of each answer, by which browsers confine what a page can do and who can embed it.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};

/// Policy of the pages: scripts, styles and requests of Weir's own address alone, and nothing inline. Thus text of a
/// client that a page shows cannot become a script.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const EMBEDDER_POLICY: HeaderName = HeaderName::from_static("cross-origin-embedder-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Header by which nginx passes events on at once, instead of collecting them in a buffer.
const PROXY_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Adds the headers that an answer does not have yet. Answers stay in no cache, unless they say otherwise.
pub fn make_strict(headers: &mut HeaderMap) {
    if headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream") {
        headers.insert(PROXY_BUFFERING, HeaderValue::from_static("no"));
    }
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (OPENER_POLICY, "same-origin"),
        (EMBEDDER_POLICY, "require-corp"),
        (RESOURCE_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}
