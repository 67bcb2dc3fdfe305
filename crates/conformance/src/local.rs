//! The local backends as subjects, ready to be examined.
//!
//! This is the one place that knows backends by name; no check does.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use warrant_protocol::{Isolation, Timestamp};
#[cfg(feature = "hermetic")]
use warrant_sandbox::hermetic::WorkerProgram;
use warrant_sandbox::{Backend, Namespace, Process};

use crate::EvidenceKeys;
use crate::subject::{Capabilities, Subject};

/// What every subject needs from whoever examines it.
#[derive(Debug, Clone)]
pub struct Setting {
    /// A directory for the checks; see [`Subject::scratch`].
    pub scratch: PathBuf,
    /// Tells the time.
    pub clock: fn() -> Timestamp,
    /// Signs the evidence of the checks.
    pub keys: EvidenceKeys,
    /// The program that becomes the interpreter's worker.
    #[cfg(feature = "hermetic")]
    pub worker: WorkerProgram,
}

impl Setting {
    /// Returns the subject of this isolation, if it is a local one that exists here.
    #[must_use]
    pub fn subject(&self, isolation: Isolation) -> Option<Subject> {
        match isolation {
            #[cfg(feature = "hermetic")]
            Isolation::Mock => Some(interpreters::mock(self)),
            #[cfg(feature = "hermetic")]
            Isolation::Hermetic => Some(interpreters::hermetic(self)),
            Isolation::Namespace => {
                Some(self.plain(isolation, Capabilities::PROGRAMS, Namespace::new))
            }
            Isolation::Process => Some(self.plain(isolation, Capabilities::PROGRAMS, Process::new)),
            _ => None,
        }
    }

    fn plain<B: Backend + 'static>(
        &self,
        isolation: Isolation,
        capabilities: Capabilities,
        open: impl Fn() -> B + Send + Sync + 'static,
    ) -> Subject {
        Subject {
            provider: isolation.as_str().to_owned(),
            open: Box::new(move || -> io::Result<Arc<dyn Backend>> { Ok(Arc::new(open())) }),
            inject: None,
            capabilities,
            scratch: self.scratch.clone(),
            clock: self.clock,
            keys: self.keys.clone(),
        }
    }
}

#[cfg(feature = "hermetic")]
mod interpreters {
    //! The backends that interpret, and the faults that can be put into one of them.

    use std::sync::Arc;

    use warrant_protocol::{Isolation, Posture};
    use warrant_sandbox::hermetic::{Hermetic, Pool};
    use warrant_sandbox::mock::{Faults, Mock};
    use warrant_sandbox::{
        Backend, BoundaryError, Cancel, Invocation, Plan, Refusal, RunReport, Sink,
    };

    use super::Setting;
    use crate::subject::{Capabilities, Fault, Subject};

    pub(super) fn hermetic(setting: &Setting) -> Subject {
        let worker = setting.worker.clone();
        let open = move || Hermetic::new(Pool::new(worker.clone(), 0));
        setting.plain(Isolation::Hermetic, Capabilities::INTERPRETER, open)
    }

    pub(super) fn mock(setting: &Setting) -> Subject {
        let worker = setting.worker.clone();
        let pool = move || Pool::new(worker.clone(), 0);
        let faulty = pool.clone();
        let open = move || Mock::new(pool());
        let mut subject = setting.plain(Isolation::Mock, Capabilities::MEMORY, open);
        subject.inject = Some(Box::new(move |fault| inject(&faulty, fault)));
        subject
    }

    fn inject(pool: &dyn Fn() -> Pool, fault: Fault) -> Option<Arc<dyn Backend>> {
        let none = Faults::none;
        let faults = match fault {
            Fault::Crash => Faults { crash: true, ..none() },
            Fault::Hang => Faults { hang: true, ..none() },
            Fault::BrokenBoundary => Faults { broken_boundary: true, ..none() },
            Fault::PostureDegraded => {
                let weaker = Faults { absent: vec!["network".to_owned()], ..none() };
                let (before, after) = (Mock::new(pool()), Mock::with_faults(pool(), weaker));
                return Some(Arc::new(Weakened { before, after }));
            }
            Fault::ServerError
            | Fault::ServerHang
            | Fault::TruncatedAnswer
            | Fault::MalformedAnswer
            | Fault::WrongSandbox
            | Fault::OtherSpecOnResume
            | Fault::KeyRevoked
            | Fault::EgressOpened
            | Fault::ImageSwapped
            | Fault::ConnectionCut => return None,
        };
        Some(Arc::new(Mock::with_faults(pool(), faults)))
    }

    /// A backend that is one thing when it is looked at and another when it runs.
    #[derive(Debug)]
    struct Weakened {
        before: Mock,
        after: Mock,
    }

    impl Backend for Weakened {
        fn isolation(&self) -> Isolation {
            self.before.isolation()
        }

        fn probe(&self) -> Posture {
            self.before.probe()
        }

        fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
            self.before.prepare(invocation)
        }

        fn run(
            &self,
            plan: &Plan,
            sink: &dyn Sink,
            cancel: &Cancel,
        ) -> Result<RunReport, BoundaryError> {
            self.after.run(plan, sink, cancel)
        }
    }
}
