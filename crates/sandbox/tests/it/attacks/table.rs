//! The table of attack × tier × result, and the proof that every attack can succeed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use warrant_sandbox::{Backend, Namespace, Process};

use crate::attacks::leaky::Leaky;
use crate::attacks::{Attack, Leaks, Scene, Verdict, all};
use crate::network::internet::options;

fn play(attack: &Attack, backend: &dyn Backend) -> Verdict {
    (attack.run)(&Scene::new(backend))
}

/// Runs every attack on every tier. Set `WARRANT_WRITE_ATTACKS` to write the table.
#[test]
fn the_table_of_attacks_is_true() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let attacks = all();
    let next = AtomicUsize::new(0);
    let played = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(attack) = attacks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let namespace = Namespace::with_egress(options());
                    let process = Process::with_egress(options());
                    let tiers = [&namespace as &dyn Backend, &process, &Leaky];
                    let verdicts = tiers.map(|tier| play(attack, tier));
                    played.lock().unwrap().insert(attack.name, verdicts);
                }
            });
        }
    });
    let played = played.into_inner().unwrap();
    let mut rows = String::new();
    let mut toothless = Vec::new();
    for attack in &attacks {
        let [ours, theirs, nobody] = &played[attack.name];
        assert_eq!(*ours, Verdict::Held, "{} against the namespace tier", attack.name);
        if *nobody == Verdict::Held && attack.leaks == Leaks::Always {
            toothless.push(attack.name);
        }
        rows.push_str(&row(attack, theirs));
    }
    assert_eq!(
        toothless,
        Vec::<&str>::new(),
        "these attacks do not even succeed where nothing holds"
    );
    compare(&rows);
}

/// Returns one line. What depends on the machine is said so, or the table would be another on each.
fn row(attack: &Attack, process: &Verdict) -> String {
    let (process, leaky) = match (attack.leaks, process) {
        (Leaks::Perhaps, _) => ("not held", "depends"),
        (Leaks::Always, Verdict::Held) => ("held", "succeeds"),
        (Leaks::Always, Verdict::Broken(_)) => ("not held", "succeeds"),
    };
    let name = attack.name.replace('_', " ");
    format!("| {} | {name} | held | {process} | {leaky} |\n", attack.group)
}

fn compare(rows: &str) {
    let table = format!(
        "# Attacks and what became of them\n\n\
         Written by the attack suite of `crates/sandbox/tests/it/attacks`; do not edit.\n\
         `held` means that the attack was tried and did not succeed, `not held` that this tier does \
         not stop it and says so in its posture.\n\
         The namespace tier is tried as root and as an ordinary user.\n\
         The leaky backend holds nothing: there every attack must succeed, or the test means nothing \
         (`depends`: only where the kernel has the feature).\n\n\
         | group | attack | namespace | process | leaky |\n|---|---|---|---|---|\n{rows}"
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/attacks.md");
    // Further sections are written by suites of other rooms.
    let written = fs::read_to_string(&path).unwrap_or_default();
    let at = written.find("\n## ").unwrap_or(written.len());
    let (written, others) = written.split_at(at);
    if std::env::var_os("WARRANT_WRITE_ATTACKS").is_some() {
        fs::write(&path, format!("{table}{others}")).unwrap();
        return;
    }
    assert_eq!(
        written, table,
        "run the suite with WARRANT_WRITE_ATTACKS=1 to write the table anew"
    );
}
