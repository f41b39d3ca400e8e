//! API keys.

use crate::app::App;
use crate::wire::error::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Lets a request pass if the API is open or the request carries a known key.
pub async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    let keys = &app.config.api_keys;
    if keys.is_empty() || given(request.headers()).is_some_and(|key| is_known(key, keys)) {
        next.run(request).await
    } else {
        ApiError::Unauthorized.into_response()
    }
}

/// The key of a request, in either of the two customary headers.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        return scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii());
    }
    headers.get("x-api-key").map(axum::http::HeaderValue::as_bytes)
}

/// Compares with every key to the end, so that the time taken tells nothing of their contents.
fn is_known(given: &[u8], keys: &[String]) -> bool {
    keys.iter().fold(false, |known, key| known | is_equal(given, key.as_bytes()))
}

/// Equality in a time that depends on `given` alone.
fn is_equal(given: &[u8], key: &[u8]) -> bool {
    let mut difference = given.len() ^ key.len();
    for (index, &byte) in given.iter().enumerate() {
        // Past its end the key is read from its start; the lengths differ already then.
        let other = if key.is_empty() { 0 } else { key[index % key.len()] };
        difference |= usize::from(std::hint::black_box(byte ^ other));
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_keys_are_known() {
        let keys = ["alpha".to_owned(), "beta".to_owned()];
        for (given, known) in
            [("alpha", true), ("beta", true), ("alphaalpha", false), ("alph", false), ("", false)]
        {
            assert_eq!(is_known(given.as_bytes(), &keys), known, "{given}");
        }
    }

    #[test]
    fn keys_come_in_two_headers() {
        let headers = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(name),
                value.parse().expect("a header value"),
            )])
        };
        assert_eq!(given(&headers("authorization", "Bearer k")), Some(&b"k"[..]));
        assert_eq!(given(&headers("authorization", "bearer  k")), Some(&b"k"[..]));
        assert_eq!(given(&headers("authorization", "Basic k")), None);
        assert_eq!(given(&headers("x-api-key", "k")), Some(&b"k"[..]));
        assert_eq!(given(&HeaderMap::new()), None);
    }
}
