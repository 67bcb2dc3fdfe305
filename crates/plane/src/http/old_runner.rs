//! Runners that do not know leases, as the reference's is: whether they can work here at all.
//!
//! Such a runner gets its secrets in the answer to its claim and then reads the workspace without a
//! token. Where blobs are not read without one it would fail after the secrets were released, and
//! the run with it; so it is refused before it takes anything.

use super::error::HttpError;
use super::service::PlaneService;

impl PlaneService {
    /// Refuses the claim of a runner that could not read the workspace.
    pub(super) fn check_can_read(&self, has_leases: bool) -> Result<(), HttpError> {
        if has_leases || self.settings.compat.open_blob_reads {
            return Ok(());
        }
        Err(HttpError::forbidden(
            "this runner reads blobs without a token, and this plane does not give them without \
             one: start the plane with --preset reference, or set \"compat\": {\"openBlobReads\": \
             true} in its config.json, or use `warrant runner start`",
        ))
    }
}
