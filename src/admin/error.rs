//! Errors of the API. Each error has a status code, and a body of the form
//! `{"error": {"code": "refused", "message": "…"}}`.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::openapi::{Content, Ref, RefOr, Response as OpenApiResponse, ResponseBuilder, Schema};
use utoipa::{IntoResponses, ToSchema};

/// Error of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub code: ErrorCode,
    pub message: String,
    /// Reasons why the request is probably a mistake, for [`ErrorCode::Doubtful`].
    pub doubts: Vec<String>,
    /// Reason for the metric of refused requests.
    reason: &'static str,
}

/// Extension of a response: reason for the metric of refused requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub &'static str);

/// Body of the answer to a request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorAnswer {
    pub error: ErrorDetails,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ErrorDetails {
    pub code: ErrorCode,
    /// For people. It has no full stop.
    pub message: String,
    /// Reasons why the request is probably a mistake: with `"force": true`, Weir carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
}

/// Kind of an error, for programs. Each kind has one status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// 400: the request is malformed.
    BadRequest,
    /// 401: the token is missing or wrong.
    Unauthorized,
    /// 403: the token does not permit this, or the request comes from a web page of another site.
    Forbidden,
    /// 404: there is no such route or thing.
    NotFound,
    /// 405: the route does not have this method.
    MethodNotAllowed,
    /// 409: the request is probably a mistake, so nothing was done.
    Doubtful,
    /// 413: the body is too long.
    TooLarge,
    /// 415: the body is not declared as JSON.
    UnsupportedMediaType,
    /// 422: a value in the request, or a file that the request needs, has errors.
    Refused,
    /// 431: the head of the request is too long.
    HeadTooLarge,
    /// 503: the request cannot be handled at the moment.
    Unavailable,
}

impl ErrorCode {
    pub const ALL: [Self; 11] = [
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Doubtful,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::Refused,
        Self::HeadTooLarge,
        Self::Unavailable,
    ];

    pub fn status(self) -> StatusCode {
        match self {
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Doubtful => StatusCode::CONFLICT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Refused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the name of the code in an answer.
    pub fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "bad-request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not-found",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::Doubtful => "doubtful",
            Self::TooLarge => "too-large",
            Self::UnsupportedMediaType => "unsupported-media-type",
            Self::Refused => "refused",
            Self::HeadTooLarge => "head-too-large",
            Self::Unavailable => "unavailable",
        }
    }

    /// Returns the meaning of the code, for the OpenAPI file.
    fn description(self) -> &'static str {
        match self {
            Self::BadRequest => "The request is malformed",
            Self::Unauthorized => "The token is missing or wrong",
            Self::Forbidden => "The token does not permit this, or the request comes from another site",
            Self::NotFound => "There is no such thing",
            Self::MethodNotAllowed => "The route does not have this method",
            Self::Doubtful => "The request is probably a mistake, so nothing was done; \"force\": true does it",
            Self::TooLarge => "The body is too long",
            Self::UnsupportedMediaType => "The body is not declared as application/json",
            Self::Refused => "A value in the request, or a file that the request needs, has errors",
            Self::HeadTooLarge => "The head of the request is too long",
            Self::Unavailable => "The request cannot be handled at the moment",
        }
    }
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), doubts: Vec::new(), reason: code.name() }
    }

    /// Sets a reason for the metric that says more than the code.
    pub fn because(self, reason: &'static str) -> Self {
        Self { reason, ..self }
    }

    /// Error: the token of a request or a login is wrong.
    pub fn wrong_token() -> Self {
        Self::new(ErrorCode::Unauthorized, "the token is wrong, or was removed").because("wrong-token")
    }

    /// Error in a value of the request.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Refused, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unavailable, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::NotFound, message)
    }

    /// Error: the request is probably a mistake, for these reasons.
    pub fn doubtful(doubts: Vec<String>) -> Self {
        Self { doubts: doubts.clone(), ..Self::new(ErrorCode::Doubtful, doubts.join("; ")) }
    }

    /// Error with the code that belongs to a status code of axum or hyper.
    fn of_status(status: StatusCode, message: String) -> Self {
        let code = ErrorCode::ALL.into_iter().find(|code| code.status() == status);
        Self::new(code.unwrap_or(ErrorCode::BadRequest), message)
    }
}

/// Turns the reason of a refusal into an error with the code `refused`.
impl From<String> for ApiError {
    fn from(why: String) -> Self {
        Self::refused(why)
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        Self::of_status(rejection.status(), rejection.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::of_status(rejection.status(), rejection.body_text())
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::of_status(rejection.status(), rejection.body_text())
    }
}

impl From<ApiError> for ErrorAnswer {
    fn from(ApiError { code, message, doubts, .. }: ApiError) -> Self {
        Self { error: ErrorDetails { code, message, doubts } }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (code, reason, answer) = (self.code, Reason(self.reason), ErrorAnswer::from(self));
        let mut response = (code.status(), axum::Json(answer)).into_response();
        response.extensions_mut().insert(reason);
        if code == ErrorCode::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Errors that every route of the API can answer, for the OpenAPI file.
pub struct Errors;

/// Errors of [`Errors`], and the error that an act is probably a mistake.
pub struct ErrorsOrDoubts;

impl IntoResponses for Errors {
    fn responses() -> BTreeMap<String, RefOr<OpenApiResponse>> {
        let codes = ErrorCode::ALL.into_iter().filter(|code| *code != ErrorCode::Doubtful);
        codes.map(reference).collect()
    }
}

impl IntoResponses for ErrorsOrDoubts {
    fn responses() -> BTreeMap<String, RefOr<OpenApiResponse>> {
        ErrorCode::ALL.into_iter().map(reference).collect()
    }
}

/// Returns the status code of an error, and a reference to its [description](described).
fn reference(code: ErrorCode) -> (String, RefOr<OpenApiResponse>) {
    (code.status().as_str().to_owned(), Ref::from_response_name(format!("{code:?}")).into())
}

/// Returns the descriptions of all errors, with their names, for the OpenAPI file.
pub fn described() -> impl Iterator<Item = (String, OpenApiResponse)> {
    let schema = || Content::new(Some(RefOr::<Schema>::Ref(Ref::from_schema_name("ErrorAnswer"))));
    ErrorCode::ALL.into_iter().map(move |code| {
        let response = ResponseBuilder::new().description(code.description()).content("application/json", schema());
        (format!("{code:?}"), response.build())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_codes_are_those_of_the_answers() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
    }
}
