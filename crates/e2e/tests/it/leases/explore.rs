//! Explores every state that a model can reach, and proves or refutes what it promises.
//!
//! Why not the crate `stateright`: half of what is promised here is "whatever happened, it can
//! still come to an end", and its `eventually` is documented to miss counterexamples on cycles,
//! which retries are. On the whole graph this is a walk backwards from the ends.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// Something that changes step by step.
pub(crate) trait Model {
    /// One state of everything.
    type State: Clone + Eq + Hash + Debug;
    /// One step.
    type Step: Clone + Debug;

    /// Returns where it begins.
    fn first(&self) -> Self::State;
    /// Returns every step that can be taken, with where it leads.
    fn next(&self, state: &Self::State) -> Vec<(Self::Step, Self::State)>;
    /// Returns what is wrong with a state.
    fn wrong(&self, state: &Self::State) -> Option<String>;
    /// Whether this is where everything should come to.
    fn is_end(&self, state: &Self::State) -> bool;
}

/// What an exploration found.
#[derive(Debug)]
pub(crate) struct Explored {
    /// How many states there are.
    pub(crate) states: usize,
    /// How many steps between them.
    pub(crate) steps: usize,
    /// How many of them are an end.
    pub(crate) ends: usize,
    /// The first thing that is wrong, with the way there.
    pub(crate) problem: Option<String>,
}

/// How many states are explored at most; more is a failure, not a partial answer.
const MOST_STATES: usize = 6_000_000;

/// Visits every state that can be reached.
pub(crate) fn explore<M: Model>(model: &M) -> Explored {
    let first = model.first();
    let mut known: HashMap<M::State, usize> = HashMap::from([(first.clone(), 0)]);
    let mut states = vec![first];
    let mut came_from: Vec<Option<(usize, M::Step)>> = vec![None];
    let mut before: Vec<Vec<u32>> = vec![Vec::new()];
    let mut at = 0;
    let mut steps = 0;
    while at < states.len() {
        let state = states[at].clone();
        if let Some(wrong) = model.wrong(&state) {
            let problem = format!("{wrong}\n{}", way_to(&came_from, &states, at));
            let (states, ends) = (states.len(), 0);
            return Explored { states, steps, ends, problem: Some(problem) };
        }
        for (step, next) in model.next(&state) {
            steps += 1;
            let number = *known.entry(next.clone()).or_insert_with(|| {
                states.push(next);
                came_from.push(Some((at, step)));
                before.push(Vec::new());
                states.len() - 1
            });
            before[number].push(u32::try_from(at).unwrap());
        }
        assert!(states.len() < MOST_STATES, "the model has no bound");
        at += 1;
    }
    let is_end: Vec<bool> = states.iter().map(|state| model.is_end(state)).collect();
    let ends = is_end.iter().filter(|is_end| **is_end).count();
    let problem = stuck(&is_end, &before)
        .map(|stuck| format!("waits forever\n{}", way_to(&came_from, &states, stuck)));
    Explored { states: states.len(), steps, ends, problem }
}

/// Returns the first state from which no end can be reached.
fn stuck(is_end: &[bool], before: &[Vec<u32>]) -> Option<usize> {
    let mut can_end = is_end.to_vec();
    let mut look: Vec<usize> = (0..is_end.len()).filter(|number| is_end[*number]).collect();
    while let Some(number) = look.pop() {
        for earlier in &before[number] {
            let earlier = *earlier as usize;
            if !can_end[earlier] {
                can_end[earlier] = true;
                look.push(earlier);
            }
        }
    }
    can_end.iter().position(|can_end| !can_end)
}

/// Returns the steps that lead to a state, one on each line.
fn way_to<S: Debug, A: Debug>(
    came_from: &[Option<(usize, A)>],
    states: &[S],
    mut number: usize,
) -> String {
    let mut lines = vec![format!("  state: {:?}", states[number])];
    while let Some((earlier, step)) = &came_from[number] {
        lines.push(format!("  {step:?}"));
        number = *earlier;
    }
    lines.reverse();
    lines.join("\n")
}
