// The five questions a receipt answers, from the bundle alone.

/** Returns the questions with their answers; `isKept` says whether an artifact is on the chain. */
export function questions(bundle, isKept) {
  const { contract, receipt, events } = bundle;
  const of = (type) => events.map((item) => item.event).filter((event) => event.type === type);
  const name = (actor) => (actor ? `${actor.id} (${actor.kind})` : "nobody");
  return [
    { question: "What moved?", answers: moved(contract, receipt, of, isKept) },
    { question: "Why?", answers: why(contract, receipt, of) },
    { question: "Who approved?", answers: approved(contract, of, name) },
    { question: "What saw it?", answers: saw(contract, receipt) },
    { question: "How to reproduce or revoke it?", answers: again(contract, receipt) },
  ];
}

function moved(contract, receipt, of, isKept) {
  const changed = of("file.changed");
  const diff = receipt.workspaceOut?.diffHash;
  return [
    `In: commit ${contract.workspace?.baseRef ?? "none"}, ${contract.workspace?.untrackedFiles?.length ?? 0} untracked files, ${contract.workspace?.deniedPaths?.length ?? 0} held back.`,
    ...capture(receipt, changed.length),
    changed.length === 0 ? null : `Out: ${changed.length} files changed: ${changed.slice(0, 8).map((event) => event.path).join(", ")}${changed.length > 8 ? " …" : ""}`,
    diff ? `The diff is ${diff.slice(0, 12)}…${isKept(diff) ? "" : ", which is not on the chain"}.` : "There is no diff.",
    (receipt.secretsReleased ?? []).length === 0 ? "No secret was released." : `Secrets released: ${receipt.secretsReleased.map((secret) => `${secret.name} (${secret.scope})`).join(", ")}.`,
    (receipt.networkAccessed ?? []).length === 0 ? "Nothing was reached." : `Reached: ${receipt.networkAccessed.map((access) => `${access.host} ${access.decision}`).join(", ")}.`,
    receipt.networkFolded ? `Blocked besides: ${receipt.networkFolded.destinations} destinations, ${receipt.networkFolded.attempts} attempts, in an artifact.` : null,
  ].filter(Boolean);
}

/** Says how much of the changes was seen; that nothing changed only where everything was looked at. */
function capture(receipt, changed) {
  const { extent, reason } = receipt.capture ?? {};
  const gate = receipt.export;
  const lines = [];
  if (extent === "partial") lines.push(`Only a part of the changes was captured: ${reason ?? "no reason given"}.`);
  else if (extent === "none") lines.push(`Changes were not captured: ${reason ?? "no reason given"}.`);
  else if (changed === 0 && !gate?.held && !gate?.refused) lines.push(extent === "complete" ? "Out: no file changed." : "Out: no change is recorded.");
  if (gate) lines.push(`Export gate: ${gate.flagged} flagged, ${gate.held} held, ${gate.refused} refused.`);
  return lines;
}

function why(contract, receipt, of) {
  const decision = receipt.decision ?? of("policy.evaluated").at(-1);
  return [
    `Task: ${contract.task?.prompt ?? ""}`,
    `Asked by ${contract.requestedBy?.id ?? "nobody"}.`,
    decision ? `Decision: ${decision.decision}${decision.reasons?.length ? `, because ${decision.reasons.join("; ")}` : decision.reason ? `, ${decision.reason}` : ""}.` : "No decision is on the chain.",
    decision?.rules?.length ? `Rules: ${decision.rules.join(", ")}.` : null,
    `Policy ${contract.policyHash}.`,
  ].filter(Boolean);
}

function approved(contract, of, name) {
  const given = [...of("approval.granted"), ...of("consent.granted")].map((event) => name(event.actor));
  const denied = of("approval.denied").map((event) => `Denied by ${name(event.actor)}: ${event.reason ?? ""}`);
  const all = new Set([...given, ...(contract.approvedBy ?? []).map(name)]);
  if (all.size > 0) return [...[...all].map((who) => `Approved by ${who}.`), ...denied];
  return denied.length > 0 ? denied : ["Nobody had to: policy allowed it."];
}

function saw(contract, receipt) {
  const { runner } = receipt;
  return [
    `Runner ${runner?.runnerId} of pool ${runner?.pool}, key ${runner?.keyId}.`,
    receipt.operation
      ? `${receipt.operation.name} was done by Warrant itself, no program ran; attestation ${runner?.attestationTier}.`
      : `Isolation: ${receipt.posture?.isolation ?? runner?.isolation ?? contract.isolation ?? "not told"}; attestation ${runner?.attestationTier}.`,
    (receipt.modelsUsed ?? []).length === 0 ? "No model was called." : `Models: ${receipt.modelsUsed.map((used) => `${used.provider} ${used.model}`).join(", ")}.`,
    `Disclosure: ${contract.disclosure}.`,
  ];
}

function again(contract, receipt) {
  const execution = contract.execution ?? {};
  const program = execution.kind === "argv" ? [execution.command, ...(execution.args ?? [])].join(" ") : execution.script ?? execution.prompt ?? "";
  return [
    `Ended ${receipt.status}${receipt.exitCode === undefined ? "" : ` with exit code ${receipt.exitCode}`}, from ${receipt.startedAt} to ${receipt.endedAt}.`,
    `Again: commit ${contract.workspace?.baseRef}, ${execution.kind}: ${program}`,
    `Take its changes home with warrant pull ${contract.runId}; take them back with warrant undo.`,
    `The contract ended at ${contract.expiresAt}.`,
  ];
}
