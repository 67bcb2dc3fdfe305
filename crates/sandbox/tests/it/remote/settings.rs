//! What is known before anything is asked.

use warrant_protocol::Isolation;
use warrant_sandbox::remote::NotConfigured;
use warrant_sandbox::{Backend as _, Invocation, Network, TtySize, WorkspaceAccess};

use super::replay::{invocation, open};

#[test]
fn a_missing_key_is_told_before_anything_is_asked() {
    for (isolation, variable) in [
        (Isolation::E2b, "E2B_API_KEY"),
        (Isolation::Daytona, "DAYTONA_API_KEY"),
        (Isolation::Opensandbox, "OPEN_SANDBOX_API_KEY"),
    ] {
        let refused = open(isolation, &[]).unwrap_err();
        assert_eq!(refused, NotConfigured::NoKey { isolation, variable });
        assert!(refused.to_string().contains(variable));
    }
    let bad = [("E2B_API_KEY", "k"), ("E2B_API_URL", "ftp://x")];
    let refused = open(Isolation::E2b, &bad).unwrap_err();
    assert!(matches!(refused, NotConfigured::BadAddress { variable: "E2B_API_URL", .. }));
    let bad = [("DAYTONA_API_KEY", "two words")];
    let refused = open(Isolation::Daytona, &bad).unwrap_err();
    assert!(matches!(refused, NotConfigured::BadKey { .. }));
}

#[test]
fn what_a_provider_cannot_express_is_refused_before_anything_is_asked() {
    for (isolation, key) in [
        (Isolation::E2b, "E2B_API_KEY"),
        (Isolation::Daytona, "DAYTONA_API_KEY"),
        (Isolation::Opensandbox, "OPENSANDBOX_API_KEY"),
    ] {
        let backend = open(isolation, &[(key, "k")]).unwrap();
        let refused = |change: &dyn Fn(&mut Invocation)| {
            let mut invocation = invocation();
            change(&mut invocation);
            assert_eq!(backend.prepare(invocation).unwrap_err().code, "SANDBOX_DENIED");
        };
        refused(&|i| i.network = Network::Allow(vec!["db.example:5432".into()]));
        refused(&|i| i.files.access = WorkspaceAccess::ReadOnly);
        refused(&|i| i.files.read_roots = vec!["/etc".into()]);
        refused(&|i| i.cwd = "/elsewhere".into());
        refused(&|i| i.tty = Some(TtySize { columns: 80, rows: 24 }));
    }
}
