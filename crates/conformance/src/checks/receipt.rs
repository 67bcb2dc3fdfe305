//! The evidence of a run: it binds the six values of the preimage, and no change goes unseen.

use serde_json::{Value, json};
use warrant_protocol::{Bundle, Digest, Outcome, Preimage, Receipt};
use warrant_sandbox::{Command, EnvValue, EnvVar};

use super::Check;
use crate::evidence::{self, Evidence, Facts, hash_of, verify_bundle};
use crate::lab::{Broken, Finding, Lab, Passed, Ran, ensure};
use crate::tier::Level;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "receipt.binds-preimage",
        level: Level::L1,
        name: "a receipt made of a run verifies and binds the six values of its sandbox",
        run: binds_preimage,
    },
    Check {
        id: "receipt.tells-the-run",
        level: Level::L1,
        name: "the receipt's outcome and digests are those of the run that was seen",
        run: tells_the_run,
    },
    Check {
        id: "preimage.recomputes",
        level: Level::L2,
        name: "every hash of the preimage recomputes from the bundle",
        run: recomputes,
    },
    Check {
        id: "preimage.follows-invocation",
        level: Level::L2,
        name: "another invocation gives another plan, the same one the same",
        run: follows_invocation,
    },
    Check {
        id: "receipt.any-change-shows",
        level: Level::L2,
        name: "a change of any bound field changes the receipt, and a changed receipt is refused",
        run: any_change_shows,
    },
    Check {
        id: "plan.no-secret-value",
        level: Level::L2,
        name: "the plan names secrets, and tells no value of theirs",
        run: no_secret_value,
    },
];

fn sealed(lab: &Lab<'_>, facts: &Facts) -> Result<Evidence, Broken> {
    Evidence::seal(facts, &lab.subject.keys, (lab.subject.clock)())
}

fn sample(lab: &Lab<'_>) -> Result<(Ran, Facts), Broken> {
    let ran = lab.run("echo out; echo err >&2; exit 7")?;
    let facts = Facts::of(&ran)?;
    Ok((ran, facts))
}

fn verified_receipt(lab: &Lab<'_>, evidence: &Evidence) -> Result<Receipt, Broken> {
    match evidence.verify(&lab.subject.keys) {
        Ok(verified) => Ok(verified.receipt().clone()),
        Err(problems) => {
            Err(Broken(format!("the receipt is refused: {}", evidence::describe(&problems))))
        }
    }
}

fn binds_preimage(lab: &Lab<'_>) -> Finding {
    let (_, facts) = sample(lab)?;
    let receipt = verified_receipt(lab, &sealed(lab, &facts)?)?;
    let bound = receipt.body().preimage.as_ref();
    let bound = bound.ok_or_else(|| Broken("the receipt has no preimage".to_owned()))?;
    ensure(*bound == facts.preimage, || "the receipt binds another preimage".to_owned())?;
    let fields = [&bound.provider_version, &bound.image_digest];
    ensure(fields.iter().all(|field| !field.is_empty()), || {
        "version or image of the sandbox are not told".to_owned()
    })?;
    ensure(bound.inputs.sandbox_spec.is_object(), || {
        format!("the plan tells nothing of the sandbox: {}", bound.inputs.sandbox_spec)
    })?;
    Ok(Passed::Held)
}

fn tells_the_run(lab: &Lab<'_>) -> Finding {
    let (ran, facts) = sample(lab)?;
    let receipt = verified_receipt(lab, &sealed(lab, &facts)?)?;
    let body = receipt.body();
    ensure(body.outcome == Some(Outcome::Exited { code: 7 }) && body.exit_code == Some(7), || {
        format!("the program exited with 7, the receipt says {:?}", body.outcome)
    })?;
    for (name, told, passed) in
        [("stdout", body.stdout, &ran.stdout), ("stderr", body.stderr, &ran.stderr)]
    {
        ensure(told.is_some_and(|told| told.digest == Digest::of(passed)), || {
            format!("the receipt's digest of {name} is of something else")
        })?;
    }
    Ok(Passed::Held)
}

fn recomputes(lab: &Lab<'_>) -> Finding {
    let (_, facts) = sample(lab)?;
    let evidence = sealed(lab, &facts)?;
    let text = evidence.bundle.to_canonical();
    let bundle = Bundle::from_slice(text.as_bytes()).map_err(|error| Broken(error.to_string()))?;
    let told = bundle.raw().get("receipt").and_then(|receipt| receipt.get("preimage"));
    let told = told.ok_or_else(|| Broken("the bundle has no preimage".to_owned()))?;
    let input = |name: &str| told.pointer(&format!("/inputs/{name}")).unwrap_or(&Value::Null);
    for (hash, name) in [
        ("sandboxSpecHash", "sandboxSpec"),
        ("mountsHash", "mounts"),
        ("egressPolicyHash", "egressPolicy"),
        ("resourceLimitsHash", "resourceLimits"),
    ] {
        let recomputed = hash_of(input(name)).to_hex();
        ensure(told.get(hash).and_then(Value::as_str) == Some(&recomputed), || {
            format!("{hash} does not recompute from the bundle")
        })?;
    }
    if let Err(problems) = verify_bundle(bundle, &lab.subject.keys) {
        return Err(Broken(format!("read back it is refused: {}", evidence::describe(&problems))));
    }
    Ok(Passed::Held)
}

fn follows_invocation(lab: &Lab<'_>) -> Finding {
    let backend = lab.open()?;
    let artifact = |change: &dyn Fn(&mut warrant_sandbox::Invocation)| {
        let mut invocation = lab.script(":");
        change(&mut invocation);
        let plan = backend.prepare(invocation);
        plan.map(|plan| plan.artifact).map_err(|refusal| Broken(format!("refused: {refusal}")))
    };
    let plain = artifact(&|_| {})?;
    ensure(plain == artifact(&|_| {})?, || "the same invocation gives two plans".to_owned())?;
    let variable = artifact(&|invocation| {
        let value = EnvValue::Plain("x".to_owned());
        invocation.env.push(EnvVar { name: "ANOTHER".to_owned(), value });
    })?;
    ensure(hash_of(&plain) != hash_of(&variable), || {
        "one more variable gives the same plan".to_owned()
    })?;
    Ok(Passed::Held)
}

/// Members of the receipt, and what someone could want them to say.
const FORGERIES: [(&str, &str); 8] = [
    ("outcome/code", "0"),
    ("exitCode", "0"),
    ("status", "\"completed\""),
    ("stdout/bytes", "5"),
    ("stderr/truncated", "true"),
    ("posture/providerVersion", "\"better\""),
    ("preimage/imageDigest", "\"sha256:00\""),
    ("preimage/inputs/egressPolicy", "{}"),
];

/// Changes one bound field of the facts.
type Change = fn(&mut Facts);

const CHANGES: [(&str, Change); 12] = [
    ("providerVersion", |facts| facts.preimage.provider_version.push('x')),
    ("imageDigest", |facts| facts.preimage.image_digest.push('x')),
    ("sandboxSpec", |facts| change_input(facts, "sandboxSpec")),
    ("mounts", |facts| change_input(facts, "mounts")),
    ("egressPolicy", |facts| change_input(facts, "egressPolicy")),
    ("resourceLimits", |facts| change_input(facts, "resourceLimits")),
    ("command", |facts| {
        let args = vec!["x".to_owned()];
        facts.command = Command::Argv { program: "other".to_owned(), args };
    }),
    ("outcome", |facts| facts.outcome = Outcome::Exited { code: 0 }),
    ("stdout", |facts| facts.stdout.digest = Digest::of(b"other")),
    ("stderr", |facts| facts.stderr.bytes += 1),
    ("usage", |facts| facts.usage.wall_us = Some(1)),
    ("posture", |facts| drop(facts.posture.components.pop_first())),
];

fn change_input(facts: &mut Facts, name: &str) {
    let changed = json!({"changed": name});
    let mut inputs = (*facts.preimage.inputs).clone();
    match name {
        "sandboxSpec" => inputs.sandbox_spec = changed,
        "mounts" => inputs.mounts = changed,
        "egressPolicy" => inputs.egress_policy = changed,
        _ => inputs.resource_limits = changed,
    }
    let (version, image) =
        (facts.preimage.provider_version.clone(), facts.preimage.image_digest.clone());
    facts.preimage = Preimage::of(version, image, inputs);
}

fn any_change_shows(lab: &Lab<'_>) -> Finding {
    let (_, facts) = sample(lab)?;
    let now = (lab.subject.clock)();
    let keys = &lab.subject.keys;
    let plain = Evidence::seal(&facts, keys, now)?;
    for (name, change) in CHANGES {
        let mut other = facts.clone();
        change(&mut other);
        let other = Evidence::seal(&other, keys, now)?;
        ensure(other.receipt.hash() != plain.receipt.hash(), || {
            format!("with another {name} the receipt has the same hash")
        })?;
    }
    for (member, forgery) in FORGERIES {
        let mut raw = Value::Object(plain.bundle.raw().clone());
        let Some(found) = raw.pointer_mut(&format!("/receipt/{member}")) else {
            return Err(Broken(format!("the receipt does not tell {member}")));
        };
        *found = serde_json::from_str(forgery).unwrap_or_default();
        let forged = Bundle::from_value(raw).map_err(|error| Broken(error.to_string()))?;
        ensure(verify_bundle(forged, keys).is_err(), || {
            format!("a receipt whose {member} was changed still verifies")
        })?;
    }
    Ok(Passed::Held)
}

fn no_secret_value(lab: &Lab<'_>) -> Finding {
    let value = "hunter2-b4c1";
    let mut invocation = lab.script("printf %s \"$TOKEN\"");
    let name = "TOKEN".parse().map_err(|error| Broken(format!("{error}")))?;
    let secret = EnvValue::Secret { name, value: value.to_owned() };
    invocation.env.push(EnvVar { name: "TOKEN".to_owned(), value: secret });
    let ran = lab.run_invocation(invocation)?;
    ensure(ran.stdout == lab.arriving(value.as_bytes()), || {
        "the program was not given its secret".to_owned()
    })?;
    let told = format!("{} {:?}", ran.plan.artifact, ran.plan);
    ensure(!told.contains(value), || "the plan tells the value of a secret".to_owned())?;
    let evidence = sealed(lab, &Facts::of(&ran)?)?;
    ensure(!evidence.bundle.to_canonical().contains(value), || {
        "the bundle tells the value of a secret".to_owned()
    })?;
    Ok(Passed::Held)
}
