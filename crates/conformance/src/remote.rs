//! Remote providers as subjects: the same checks, and faults put on their wire.

use std::io;
use std::sync::Arc;

use warrant_protocol::Isolation;
use warrant_sandbox::remote::{NotConfigured, Surroundings, Tamper};
use warrant_sandbox::{Backend, Remote};

use crate::local::Setting;
use crate::subject::{Capabilities, Fault, OutputFidelity, Subject};

impl Setting {
    /// Returns the subject of a remote provider.
    ///
    /// # Errors
    /// [`NotConfigured`] when a key is missing or an address makes no sense.
    pub fn remote(
        &self,
        isolation: Isolation,
        around: Surroundings,
    ) -> Result<Subject, NotConfigured> {
        let output = match Remote::open(isolation, around.clone())?.carries_lines() {
            true => OutputFidelity::Lines,
            false => OutputFidelity::Bytes,
        };
        let faulty = around.clone();
        let open = move || -> io::Result<Arc<dyn Backend>> {
            let remote = Remote::open(isolation, around.clone()).map_err(io::Error::other)?;
            Ok(Arc::new(remote))
        };
        let inject = move |fault| -> Option<Arc<dyn Backend>> {
            let remote = Remote::open(isolation, faulty.clone()).ok()?;
            Some(Arc::new(remote.tampered(tamper(fault))))
        };
        Ok(Subject {
            provider: isolation.as_str().to_owned(),
            open: Box::new(open),
            inject: Some(Box::new(inject)),
            capabilities: Capabilities { output, ..Capabilities::REMOTE },
            scratch: self.scratch.clone(),
            clock: self.clock,
            keys: self.keys.clone(),
        })
    }
}

/// Every fault has a form on the wire.
const fn tamper(fault: Fault) -> Tamper {
    match fault {
        Fault::Crash | Fault::ConnectionCut => Tamper::Cut,
        Fault::Hang => Tamper::Silent,
        Fault::BrokenBoundary => Tamper::Unbuildable,
        Fault::PostureDegraded | Fault::EgressOpened => Tamper::EgressOpened,
        Fault::ServerError => Tamper::ServerError,
        Fault::ServerHang => Tamper::ServerHang,
        Fault::TruncatedAnswer => Tamper::Truncated,
        Fault::MalformedAnswer => Tamper::Malformed,
        Fault::WrongSandbox => Tamper::WrongSandbox,
        Fault::OtherSpecOnResume => Tamper::OtherSpec,
        Fault::KeyRevoked => Tamper::KeyRevoked,
        Fault::ImageSwapped => Tamper::ImageSwapped,
    }
}
