//! The same invocation at every provider.

use warrant_protocol::{Enforcement, Evidence, Isolation, Outcome};
use warrant_sandbox::remote::Remote;
use warrant_sandbox::{Backend as _, Cancel, Stdin};

use super::kit::Desk;
use super::{daytona, opensandbox};
use crate::bench::run;

fn daytona_at(desk: &Desk, url: &str) -> Remote {
    let api = format!("{url}/api");
    let variables = [("DAYTONA_API_KEY", daytona::KEY), ("DAYTONA_API_URL", api.as_str())];
    Remote::open(Isolation::Daytona, desk.around(&variables)).unwrap()
}

fn opensandbox_at(desk: &Desk, address: &str) -> Remote {
    let variables = [("OPENSANDBOX_API_KEY", opensandbox::KEY), ("OPEN_SANDBOX_DOMAIN", address)];
    Remote::open(Isolation::Opensandbox, desk.around(&variables)).unwrap()
}

/// Runs a script that reads, writes, deletes and fails, and looks at everything that came back.
#[track_caller]
fn works(desk: &Desk, backend: &Remote) {
    desk.put("kept.txt", "kept\n", 0o644);
    desk.put("old.txt", "old\n", 0o644);
    let script = "cat kept.txt; cat; echo \"[$GREETING][${IMAGE_VARIABLE-none}]\"; echo err >&2; \
                  rm old.txt; echo new > new.txt; exit 3";
    let mut invocation = desk.script(script);
    invocation.stdin = Stdin::Bytes(b"input\n".to_vec());
    let (report, heard) = run(backend, invocation);
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 3 });
    assert_eq!(heard.stdout(), "kept\ninput\n[it's \"fine\"][none]\n");
    assert_eq!(heard.stderr(), "err\n");
    let upper = report.upper.unwrap();
    let mut names = Vec::new();
    for entry in &mut rustix::fs::Dir::read_from(&upper).unwrap() {
        names.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(names, [".", "..", "new.txt", "old.txt"]);
    let network = &report.posture.components["network"];
    assert_eq!(
        (network.enforcement, network.evidence),
        (Enforcement::Enforced, Evidence::Measured)
    );
    assert!(backend.round_trip(b"one\r\n--two").unwrap());
}

#[test]
fn daytona_runs_a_program_with_its_streams_apart() {
    let (provider, server) = daytona::Provider::start();
    let desk = Desk::new();
    let backend = daytona_at(&desk, &server.url());
    works(&desk, &backend);
    assert_eq!((provider.left(), provider.programs().len()), (0, 1));
    // Values travel in a file, never in a command or in what the sandbox is.
    assert!(!provider.programs()[0].contains("fine"));
    assert!(!format!("{:?}", provider.creates.lock().unwrap()).contains("fine"));
}

#[test]
fn opensandbox_runs_a_program_line_by_line() {
    let (provider, server) = opensandbox::Provider::start();
    let desk = Desk::new();
    let backend = opensandbox_at(&desk, &server.address);
    works(&desk, &backend);
    assert_eq!((provider.left(), provider.programs().len()), (0, 1));
    assert!(!provider.programs()[0].contains("fine"));
}

#[test]
fn rules_enforced_by_names_alone_or_by_nobody_are_no_rules() {
    for enforcement in [Some("dns"), None] {
        let (provider, server) = opensandbox::Provider::start();
        *provider.enforcement.lock().unwrap() = enforcement;
        let desk = Desk::new();
        let backend = opensandbox_at(&desk, &server.address);
        let mut plan = backend.prepare(desk.script(":")).unwrap();
        let posture = backend.ready(&mut plan, &Cancel::new().unwrap()).unwrap();
        assert_eq!(posture.components["egress_policy"].enforcement, Enforcement::Absent);
        assert_eq!(posture.components["network"].enforcement, Enforcement::Absent);
        backend.release(&plan);
        assert_eq!(provider.left(), 0);
    }
}
