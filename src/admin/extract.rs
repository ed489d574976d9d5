//! Extractors of a request's parts. They are those of axum, but a bad request gets an error in the form of the API.

use super::{ApiError, ErrorCode};
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// JSON body of a request or an answer.
pub struct Json<T>(pub T);

/// Parameters in the query of a request's URI.
pub struct Query<T>(pub T);

/// Parameters in the path of a request's URI.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (head, body) = request.into_parts();
        // The gate has bounded the body, and it is in memory already.
        let body = axum::body::to_bytes(body, usize::MAX).await;
        let body = body.map_err(|_| ApiError::new(ErrorCode::BadRequest, "the body is incomplete"))?;
        let begin = body.trim_ascii_start().first().copied();
        let request = Request::from_parts(head, Body::from(body));
        let axum::Json(value) = axum::Json::from_request(request, state).await?;
        // serde also accepts a list of the values, which no reader of the OpenAPI file expects.
        match begin {
            Some(b'{') => Ok(Self(value)),
            _ => Err(ApiError::refused("the body must be a JSON object")),
        }
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let axum::extract::Query(value) = axum::extract::Query::from_request_parts(parts, state).await?;
        Ok(Self(value))
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let axum::extract::Path(value) = axum::extract::Path::from_request_parts(parts, state).await?;
        Ok(Self(value))
    }
}
