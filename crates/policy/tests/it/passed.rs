//! A record that a policy passed: it decides as the policy does, and speaks of nothing else.

use warrant_policy::{PolicySnapshot, PolicyText, Preset, decide, examples};

const MAKER: &str = "warrant 1.0 (this build)";

fn record(text: PolicyText<'_>) -> String {
    PolicySnapshot::load(text).unwrap().record(text, MAKER).unwrap()
}

#[test]
fn a_recalled_policy_decides_as_the_loaded_one() {
    let mut decided = 0;
    for preset in Preset::ALL {
        let text = preset.text();
        let loaded = preset.load().unwrap();
        let recalled = PolicySnapshot::recall(text, MAKER, &record(text)).unwrap();
        assert_eq!(recalled.hash(), loaded.hash());
        assert_eq!(recalled.rule_count(), loaded.rule_count());
        // The examples of every policy are put to every other, too: more facts, more rules.
        for other in Preset::ALL {
            for (_, example) in examples::read(other.text().examples).unwrap() {
                let facts = example.facts().unwrap();
                assert_eq!(decide(&recalled, &facts), decide(&loaded, &facts), "{}", example.name);
                decided += 1;
            }
        }
    }
    assert!(decided > 100, "{decided}");
}

#[test]
fn a_record_vouches_for_no_other_text_and_no_other_maker() {
    let text = Preset::Default.text();
    let strict = Preset::Strict.text();
    let record = record(text);
    assert!(PolicySnapshot::recall(text, MAKER, &record).is_some());
    let others = [
        (PolicyText { rules: strict.rules, ..text }, MAKER),
        (PolicyText { document: strict.document, ..text }, MAKER),
        (PolicyText { examples: strict.examples, ..text }, MAKER),
        (text, "warrant 1.1"),
    ];
    for (other, maker) in others {
        assert!(PolicySnapshot::recall(other, maker, &record).is_none());
    }
    assert!(Preset::Default.load().unwrap().record(strict, MAKER).is_none());
}

#[test]
fn a_damaged_record_is_no_record() {
    let text = Preset::Default.text();
    let record = record(text);
    for length in (0..record.len()).step_by(41) {
        let Some(start) = record.get(..length) else { continue };
        assert!(PolicySnapshot::recall(text, MAKER, start).is_none(), "{length}");
    }
    let foreign = record.replace("permit", "forbid");
    assert_ne!(foreign, record);
    assert!(PolicySnapshot::recall(text, MAKER, &foreign).is_none());
}
