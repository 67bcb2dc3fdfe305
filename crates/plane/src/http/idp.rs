//! Tokens of an identity provider: signature against pinned keys, issuer, audience, time.
//!
//! Nothing is fetched: the keys are in the settings, so nobody can talk the plane into others.

use crate::request_context::keep_cause;
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use warrant_protocol::request::{ActorKind, ActorRef};

use super::error::HttpError;
use super::settings::IdpSettings;

/// How far clocks may differ, in seconds.
const LEEWAY_S: u64 = 30;

/// What of a token counts.
#[derive(Debug, Deserialize)]
struct Claims {
    sub: String,
}

/// Returns who a token of the identity provider names.
pub(super) fn actor_of_token(
    settings: Option<&IdpSettings>,
    token: &str,
) -> Result<ActorRef, HttpError> {
    let Some(settings) = settings else {
        return Err(HttpError::bad_request("no IdP is configured for approvals"));
    };
    let refused =
        |why: &str| HttpError::not_accepted(format!("the identity token is not accepted: {why}"));
    let header =
        decode_header(token).map_err(|error| keep_cause(&error, refused("it is no token")))?;
    // SECURITY: a secret-key algorithm would take a published key for its secret.
    if !is_public_key_algorithm(header.alg) {
        return Err(refused("its algorithm has no public key"));
    }
    let keys: JwkSet = serde_json::from_value(settings.jwks.clone())
        .map_err(|error| HttpError::internal(&error))?;
    let jwk = match (&header.kid, keys.keys.as_slice()) {
        (Some(kid), _) => keys.find(kid),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    let jwk = jwk.ok_or_else(|| refused("no pinned key signed it"))?;
    let key = DecodingKey::from_jwk(jwk)
        .map_err(|error| keep_cause(&error, refused("its key cannot be used")))?;
    let mut validation = Validation::new(header.alg);
    validation.leeway = LEEWAY_S;
    validation.validate_nbf = true;
    validation.set_issuer(&[&settings.issuer]);
    validation.set_audience(&[&settings.audience]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let claims = decode::<Claims>(token, &key, &validation)
        .map_err(|error| {
            keep_cause(&error, refused("signature, issuer, audience or time is wrong"))
        })?
        .claims;
    if claims.sub.is_empty() || claims.sub.len() > 256 {
        return Err(refused("its subject is no name"));
    }
    Ok(ActorRef { kind: ActorKind::Human, id: claims.sub })
}

const fn is_public_key_algorithm(algorithm: Algorithm) -> bool {
    !matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
}
