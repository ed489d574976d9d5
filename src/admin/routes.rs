//! Routes of the API, and their description as an OpenAPI file.
//!
//! A new route is a function with `#[utoipa::path]` in the file of its subject, and one line in [`reading`] or
//! [`acting`].

use super::{Api, ApiError, ErrorAnswer, ErrorCode};
use super::{
    activity, audit, budgets, caller, egress, error, events, evidence, exceptions, level_chart, limits, logins,
    memories, outcomes, refusals, rehearsal, reload, sessions, state, status, top, upstreams, what_if,
};
use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware::from_fn;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes that change nothing. Each token permits them.
fn reading() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(exceptions::list))
        .routes(routes!(egress::register::list))
        .routes(routes!(egress::register::check))
        .routes(routes!(audit::audit))
        .routes(routes!(logins::logins))
        .routes(routes!(refusals::refusal))
        .routes(routes!(refusals::refusals))
        .routes(routes!(evidence::evidence))
        .routes(routes!(top::senders))
        .routes(routes!(limits::limits))
        .routes(routes!(top::of_limit))
        .routes(routes!(activity::activity))
        .routes(routes!(level_chart::history))
        .routes(routes!(budgets::of_owner))
        .routes(routes!(status::status))
        .routes(routes!(events::events))
        .routes(routes!(sessions::sessions))
        .routes(routes!(upstreams::upstreams))
        .routes(routes!(state::state))
}

/// Routes of tests, which change nothing but can cost much time and memory. Only a token with `act` permits them.
fn testing() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(rehearsal::test)).routes(routes!(what_if::what_if))
}

/// Routes of acts. Only a token with `act` permits them.
fn acting() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(reload::reload))
        .routes(routes!(exceptions::grants::grant, exceptions::grants::revoke))
        .routes(routes!(exceptions::suspensions::suspend, exceptions::suspensions::release))
        .routes(routes!(egress::register::register, egress::register::unregister))
        .routes(routes!(egress::register::quarantine, egress::register::unquarantine))
        .routes(routes!(exceptions::resets::reset))
        .routes(routes!(memories::learn))
        .routes(routes!(outcomes::outcomes))
        .routes(routes!(egress::blocked::blocked))
}

/// Title and security of the API.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Weir", description = "Observe and act on a running Weir."),
    components(schemas(ErrorAnswer)),
    security(("token" = [])),
    modifiers(&Token, &DescribedErrors)
)]
struct Description;

/// Bearer token, as the OpenAPI file describes it.
struct Token;

impl utoipa::Modify for Token {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let text = "A token of weir token add, needed over TCP. The control socket needs none.";
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(text)).build();
        openapi.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// Errors, as the OpenAPI file describes them.
struct DescribedErrors;

impl utoipa::Modify for DescribedErrors {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let described = error::described().map(|(name, response)| (name, response.into()));
        openapi.components.get_or_insert_default().responses.extend(described);
    }
}

fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Description::openapi())
        .merge(reading().route_layer(from_fn(caller::require_caller)))
        .merge(testing().route_layer(from_fn(caller::require_actor)))
        // The layer that is added last runs first.
        .merge(acting().route_layer(from_fn(caller::to_its_end)).route_layer(from_fn(caller::require_actor)))
}

/// Returns the routes of the API.
pub fn router(api: Api) -> Router {
    routes().split_for_parts().0.with_state(api)
}

/// Adds the answers to requests for other paths and methods.
pub fn with_fallbacks(router: Router) -> Router {
    let no_method = |method: Method, uri: Uri| async move {
        ApiError::new(ErrorCode::MethodNotAllowed, format!("{} has no {method}", uri.path().escape_debug()))
    };
    let no_route = |uri: Uri| async move { ApiError::not_found(format!("there is no {}", uri.path().escape_debug())) };
    router.method_not_allowed_fallback(no_method).fallback(no_route)
}

/// Returns the OpenAPI file, as JSON.
pub fn openapi() -> String {
    let description = routes().into_openapi();
    // The serialization of strings, numbers and maps with text keys does not fail.
    description.to_pretty_json().unwrap_or_default() + "\n"
}
