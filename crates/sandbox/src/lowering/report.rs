//! The lowering report: what a run will have, for people, tests and the receipt.

use serde_json::{Value, json};
use warrant_script::{Effect, Target};

use super::Root;

/// What a command will have, and what it is thought to do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowering {
    /// Roots the request declared, the workspace first.
    pub declared: Vec<Root>,
    /// Roots the backend itself brings.
    pub runtime: Vec<Root>,
    /// Roots that were granted because of gaps.
    pub granted: Vec<Root>,
    /// What the command is thought to do.
    pub effects: Vec<Effect>,
    /// What may go wrong, for people.
    pub warnings: Vec<String>,
}

impl Lowering {
    /// Returns the report as JSON: what `--dry-run` prints and the chain records.
    #[must_use]
    pub fn to_value(&self) -> Value {
        json!({
            "declaredRoots": roots(&self.declared),
            "runtimeRoots": roots(&self.runtime),
            "grantedRoots": roots(&self.granted),
            "effects": self.effects.iter().map(effect).collect::<Vec<_>>(),
            "warnings": self.warnings,
        })
    }
}

fn roots(roots: &[Root]) -> Vec<Value> {
    let row = |root: &Root| json!({"path": root.path.display().to_string(), "access": root.access.as_str()});
    roots.iter().map(row).collect()
}

fn effect(effect: &Effect) -> Value {
    let target = match &effect.target {
        Target::Path(path) => json!({"path": path}),
        Target::Pattern(pattern) => json!({"pattern": pattern}),
        Target::Home { rest } => json!({"home": rest}),
        Target::Dynamic => json!({"dynamic": true}),
    };
    json!({
        "token": effect.token,
        "target": target,
        "access": effect.access.as_str(),
        "program": effect.program,
        "why": effect.why,
        "confidence": effect.confidence.as_str(),
    })
}
