BEGIN;
CREATE TABLE runs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  state TEXT NOT NULL,
  epoch INTEGER NOT NULL DEFAULT 0,
  owner TEXT,
  runner TEXT,
  lease_until INTEGER,
  pool TEXT NOT NULL,
  agent_kind TEXT NOT NULL,
  isolation TEXT,
  requested_by TEXT NOT NULL,
  request_hash BLOB NOT NULL,
  policy_hash BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  deadline INTEGER,
  head BLOB,
  event_count INTEGER NOT NULL DEFAULT 0,
  idempotency TEXT UNIQUE
, priority INTEGER NOT NULL DEFAULT 0, turn INTEGER NOT NULL DEFAULT 0, stop_by TEXT, stop_at INTEGER, is_local INTEGER NOT NULL DEFAULT 0, lease_ms INTEGER, disconnect_ms INTEGER, generation INTEGER) STRICT;
CREATE TABLE events (
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  ts INTEGER NOT NULL,
  hash BLOB NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE receipts (
  run INTEGER PRIMARY KEY,
  hash BLOB NOT NULL,
  body TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;
CREATE TABLE approvals (
  id INTEGER PRIMARY KEY,
  run INTEGER NOT NULL,
  approver TEXT NOT NULL,
  key_id TEXT NOT NULL,
  level INTEGER NOT NULL,
  statement TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  used_at INTEGER,
  UNIQUE (run, approver)
) STRICT;
CREATE TABLE blobs (
  digest BLOB PRIMARY KEY,
  size INTEGER NOT NULL,
  content BLOB,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE policies (
  seq INTEGER PRIMARY KEY,
  hash BLOB NOT NULL,
  body TEXT NOT NULL,
  set_by TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;
CREATE TABLE clocks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE turns (
  pool TEXT NOT NULL,
  requester TEXT NOT NULL,
  turn INTEGER NOT NULL,
  PRIMARY KEY (pool, requester)
) STRICT, WITHOUT ROWID;
CREATE TABLE principals (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  role TEXT NOT NULL,
  kind TEXT NOT NULL,
  groups TEXT NOT NULL,
  token_hash BLOB NOT NULL UNIQUE,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE runners (
  id TEXT PRIMARY KEY,
  pool TEXT NOT NULL,
  public_key_pem TEXT NOT NULL,
  token_hash BLOB NOT NULL UNIQUE,
  enrolled_at INTEGER NOT NULL,
  revoked_at INTEGER
, abilities TEXT, is_proved INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;
CREATE TABLE enroll_tokens (
  token_hash BLOB PRIMARY KEY,
  pool TEXT,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at INTEGER
, used_by TEXT) STRICT, WITHOUT ROWID;
CREATE TABLE sweeping (run INTEGER PRIMARY KEY) STRICT;
CREATE TABLE records (
  session TEXT NOT NULL,
  lamport INTEGER NOT NULL,
  owner TEXT NOT NULL,
  run TEXT NOT NULL,
  hash BLOB NOT NULL,
  body TEXT NOT NULL,
  signature TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (session, lamport)
) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
  session TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  lamport INTEGER NOT NULL,
  count INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE papers (
  run INTEGER PRIMARY KEY,
  prompt TEXT NOT NULL,
  judgment TEXT NOT NULL,
  request TEXT NOT NULL,
  contract TEXT
) STRICT;
CREATE TABLE reports (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  body TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE false_claims (
  id INTEGER PRIMARY KEY,
  runner TEXT NOT NULL,
  run TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  field TEXT NOT NULL,
  detail TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  UNIQUE (runner, run, epoch, field, detail)
) STRICT;
CREATE TABLE blob_uploaders (
  principal TEXT NOT NULL,
  digest BLOB NOT NULL,
  PRIMARY KEY (principal, digest)
) STRICT, WITHOUT ROWID;
CREATE TABLE blob_runs (
  digest BLOB NOT NULL,
  run INTEGER NOT NULL,
  PRIMARY KEY (digest, run)
) STRICT, WITHOUT ROWID;
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local,lease_ms,disconnect_ms,generation) VALUES (1,'run_d0af306f-32a1-4071-a03e-945f7356a22d','completed',1,NULL,'rnr_6eba3a3b-3ba4-4a5b-800e-e72bf8246890',NULL,'default','command',NULL,'human:alice',X'A7488175A83A1B2DE16995454070E9BF7BB1B8B143C5E8276EFF177DA9D2B627',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794957209285,1794957209293,NULL,X'B2BC26523B7AD0EBB42912FE8D77D698FD74FA20A566BD60F189570FA93F30CC',6,NULL,0,1,NULL,NULL,1,15000,NULL,NULL);
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local,lease_ms,disconnect_ms,generation) VALUES (2,'run_a8d48f89-4f5e-415e-a024-58c62118011e','completed',1,NULL,'rnr_6eba3a3b-3ba4-4a5b-800e-e72bf8246890',NULL,'default','command',NULL,'human:alice',X'4425ADAB35ECCD96D54C04FE0D32F022DE5715AE8F865C850DB0C0B6B39BC481',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794957209294,1794957209296,NULL,X'446CAC01BD07981D8461A1C176F34AAD8B1BE018AA30BE5D4BB78F1E04DDE301',6,NULL,0,2,NULL,NULL,1,15000,NULL,NULL);
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local,lease_ms,disconnect_ms,generation) VALUES (3,'run_b73773f1-1d83-4a77-8674-c9bc3a7b819a','denied',0,NULL,NULL,NULL,'default','command',NULL,'human:alice',X'3420C6174B9BF1851358EC4FA39C970B1F8D235D8606910C61A5A81FDAE7BBC4',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794957209304,1794957209304,NULL,X'8824398220DE0E40AEB512593A06F2E01BBF633D7EC8B2E5D3D2C5B30D9887BA',5,NULL,0,0,NULL,NULL,1,NULL,NULL,NULL);
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local,lease_ms,disconnect_ms,generation) VALUES (4,'run_c9a1df6e-b70a-4364-b782-90b6bcdd8353','awaiting_approval',0,NULL,NULL,NULL,'default','command',NULL,'human:alice',X'503EE1C60053012C8B3715F9BE3DD23C6C6CBAE29709155638360BD3F4A9BDC6',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794957209310,1794957209310,1794957269310,NULL,0,NULL,0,0,NULL,NULL,1,NULL,NULL,NULL);
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local,lease_ms,disconnect_ms,generation) VALUES (5,'run_071c46f8-bd34-408e-a266-e2c753e418f2','queued',0,NULL,NULL,NULL,'default','command',NULL,'human:alice',X'A4F9BE47E0E2407FFAD0C587B7C12E9C6A79620728BA0D1C7D3EC427F48BC16D',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794957209313,1794957209313,NULL,X'344AE45FACFBA6C4CB562B364F4E4F87C00F4E3EFC8BB2E62A6BF1F5A612F478',3,NULL,0,3,NULL,NULL,1,NULL,NULL,NULL);
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,0,1794957209285,X'E47B7432EAAEC8CC1C14F6800FD06EBA61171FEC7753BE8618ADB01D95DD142F','{"version":"warrant.event.v1","seq":0,"ts":"2026-11-17T23:13:29.285Z","prev":"7a024f5e3fe00699b8c5e0b8bb9f81cf104b19f76a03050f6d234ea1905d8ce0","event":{"type":"run.created"},"hash":"e47b7432eaaec8cc1c14f6800fd06eba61171fec7753be8618adb01d95dd142f"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,1,1794957209285,X'5AFE750BADDD42D80C451D7FB14369F632C8BF12D3C6D16E083CE9658887D046','{"version":"warrant.event.v1","seq":1,"ts":"2026-11-17T23:13:29.285Z","prev":"e47b7432eaaec8cc1c14f6800fd06eba61171fec7753be8618adb01d95dd142f","event":{"type":"decision.made","decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"hash":"5afe750baddd42d80c451d7fb14369f632c8bf12d3c6d16e083ce9658887d046"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,2,1794957209285,X'DFA1BEBC29D0E028EDBCA163146ADE51744AF88B0E0C4DA646AB26BEE0A16A5D','{"version":"warrant.event.v1","seq":2,"ts":"2026-11-17T23:13:29.285Z","prev":"5afe750baddd42d80c451d7fb14369f632c8bf12d3c6d16e083ce9658887d046","event":{"type":"policy.evaluated","decision":"allow","reason":"policy allows this run"},"hash":"dfa1bebc29d0e028edbca163146ade51744af88b0e0c4da646ab26bee0a16a5d"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,3,1794957209287,X'E158A81644DC7929D33EA8F1C6849DB80314AD8F534244CE44F7DACBC048FC71','{"version":"warrant.event.v1","seq":3,"ts":"2026-11-17T23:13:29.287Z","prev":"dfa1bebc29d0e028edbca163146ade51744af88b0e0c4da646ab26bee0a16a5d","event":{"type":"run.claimed","runnerId":"rnr_6eba3a3b-3ba4-4a5b-800e-e72bf8246890","runnerKeyId":"ed25519:5ba253e0afd76995","epoch":1},"hash":"e158a81644dc7929d33ea8f1c6849db80314ad8f534244ce44f7dacbc048fc71"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,4,1794957209287,X'8A8BC9156FD858A7E16920EDF4E3E851BB0BEAC908B25793E5354A8B67FFB14B','{"version":"warrant.event.v1","seq":4,"ts":"2026-11-17T23:13:29.287Z","prev":"e158a81644dc7929d33ea8f1c6849db80314ad8f534244ce44f7dacbc048fc71","event":{"type":"run.started","epoch":1,"lamport":1},"hash":"8a8bc9156fd858a7e16920edf4e3e851bb0beac908b25793e5354a8b67ffb14b"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,5,1794957209293,X'B2BC26523B7AD0EBB42912FE8D77D698FD74FA20A566BD60F189570FA93F30CC','{"version":"warrant.event.v1","seq":5,"ts":"2026-11-17T23:13:29.293Z","prev":"8a8bc9156fd858a7e16920edf4e3e851bb0beac908b25793e5354a8b67ffb14b","event":{"type":"run.completed"},"hash":"b2bc26523b7ad0ebb42912fe8d77d698fd74fa20a566bd60f189570fa93f30cc"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,0,1794957209294,X'DC890F8BD25A91B99AF1172A02DC63D8EF4045140D8A75085DC9E59EF1D6FD63','{"version":"warrant.event.v1","seq":0,"ts":"2026-11-17T23:13:29.294Z","prev":"e343cd608c0cdd15dfe7610f250361e5f10af80efcdfe2c425f01803786ddf87","event":{"type":"run.created"},"hash":"dc890f8bd25a91b99af1172a02dc63d8ef4045140d8a75085dc9e59ef1d6fd63"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,1,1794957209294,X'F8255BFDB1B455E9195D6AA0E1AF0FD351235882165FBDCE22791F7AFBCDF4ED','{"version":"warrant.event.v1","seq":1,"ts":"2026-11-17T23:13:29.294Z","prev":"dc890f8bd25a91b99af1172a02dc63d8ef4045140d8a75085dc9e59ef1d6fd63","event":{"type":"decision.made","decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"hash":"f8255bfdb1b455e9195d6aa0e1af0fd351235882165fbdce22791f7afbcdf4ed"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,2,1794957209294,X'D39FEEAF9CF08B75F42B76278143C072BD78815A1094EE9C9B54EF8D3C743558','{"version":"warrant.event.v1","seq":2,"ts":"2026-11-17T23:13:29.294Z","prev":"f8255bfdb1b455e9195d6aa0e1af0fd351235882165fbdce22791f7afbcdf4ed","event":{"type":"policy.evaluated","decision":"allow","reason":"policy allows this run"},"hash":"d39feeaf9cf08b75f42b76278143c072bd78815a1094ee9c9b54ef8d3c743558"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,3,1794957209295,X'D0BB572FB6BBBC99C5720A1FEF98024021394CB5677D7727F3632D3CB381D0A9','{"version":"warrant.event.v1","seq":3,"ts":"2026-11-17T23:13:29.295Z","prev":"d39feeaf9cf08b75f42b76278143c072bd78815a1094ee9c9b54ef8d3c743558","event":{"type":"run.claimed","runnerId":"rnr_6eba3a3b-3ba4-4a5b-800e-e72bf8246890","runnerKeyId":"ed25519:5ba253e0afd76995","epoch":1},"hash":"d0bb572fb6bbbc99c5720a1fef98024021394cb5677d7727f3632d3cb381d0a9"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,4,1794957209295,X'6B6B53FC80556F645DB44A0164ADEDB0D7838D3066652C5FE763345D87B4D67A','{"version":"warrant.event.v1","seq":4,"ts":"2026-11-17T23:13:29.295Z","prev":"d0bb572fb6bbbc99c5720a1fef98024021394cb5677d7727f3632d3cb381d0a9","event":{"type":"run.started","epoch":1,"lamport":2},"hash":"6b6b53fc80556f645db44a0164adedb0d7838d3066652c5fe763345d87b4d67a"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,5,1794957209296,X'446CAC01BD07981D8461A1C176F34AAD8B1BE018AA30BE5D4BB78F1E04DDE301','{"version":"warrant.event.v1","seq":5,"ts":"2026-11-17T23:13:29.296Z","prev":"6b6b53fc80556f645db44a0164adedb0d7838d3066652c5fe763345d87b4d67a","event":{"type":"run.completed"},"hash":"446cac01bd07981d8461a1c176f34aad8b1be018aa30be5d4bb78f1e04dde301"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,0,1794957209304,X'3D88D4F691363A3538D4A86025038D3EE851F16983A7FE1B561A2F251D459A22','{"version":"warrant.event.v1","seq":0,"ts":"2026-11-17T23:13:29.304Z","prev":"c2e9fb8d837312965fea4fd3d665233ff8002f46775fe467c01b8f85c2acd8c3","event":{"type":"run.created"},"hash":"3d88d4f691363a3538d4a86025038d3ee851f16983a7fe1b561a2f251d459a22"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,1,1794957209304,X'33B856BD040E09FF8270224BEB04BD50085A4D2E1BB09E7620C639BF967680A8','{"version":"warrant.event.v1","seq":1,"ts":"2026-11-17T23:13:29.304Z","prev":"3d88d4f691363a3538d4a86025038d3ee851f16983a7fe1b561a2f251d459a22","event":{"type":"decision.made","decision":"deny","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"hash":"33b856bd040e09ff8270224beb04bd50085a4d2e1bb09e7620c639bf967680a8"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,2,1794957209304,X'844B9184A857D167E9D93386C511E5F23B83EBD129A07EB3F1C71F6B9508E4FD','{"version":"warrant.event.v1","seq":2,"ts":"2026-11-17T23:13:29.304Z","prev":"33b856bd040e09ff8270224beb04bd50085a4d2e1bb09e7620c639bf967680a8","event":{"type":"policy.evaluated","decision":"deny","reason":"policy denied: "},"hash":"844b9184a857d167e9d93386c511e5f23b83ebd129a07eb3f1c71f6b9508e4fd"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,3,1794957209304,X'B312EB796445D91DA4CED6A61BF17914FACEBAEF8265806683B3EDA054D8FD11','{"version":"warrant.event.v1","seq":3,"ts":"2026-11-17T23:13:29.304Z","prev":"844b9184a857d167e9d93386c511e5f23b83ebd129a07eb3f1c71f6b9508e4fd","event":{"type":"outcome.recorded","outcome":{"kind":"denied"},"usage":{}},"hash":"b312eb796445d91da4ced6a61bf17914facebaef8265806683b3eda054d8fd11"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,4,1794957209304,X'8824398220DE0E40AEB512593A06F2E01BBF633D7EC8B2E5D3D2C5B30D9887BA','{"version":"warrant.event.v1","seq":4,"ts":"2026-11-17T23:13:29.304Z","prev":"b312eb796445d91da4ced6a61bf17914facebaef8265806683b3eda054d8fd11","event":{"type":"run.failed","failure":"policy_denied","message":"policy denied: "},"hash":"8824398220de0e40aeb512593a06f2e01bbf633d7ec8b2e5d3d2c5b30d9887ba"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (5,0,1794957209313,X'7A5A274FB63994F386E1EACEE51B8C3D28D1E020AD03AE22D2DFD4D137DEF119','{"version":"warrant.event.v1","seq":0,"ts":"2026-11-17T23:13:29.313Z","prev":"8bec516a610558f0ea71b20c213e642c7942184738c23dde4b86de7286d803bc","event":{"type":"run.created"},"hash":"7a5a274fb63994f386e1eacee51b8c3d28d1e020ad03ae22d2dfd4d137def119"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (5,1,1794957209313,X'705034676235353D33DF383C2702EE79408D73458241F73B6F20EE07B4441B3C','{"version":"warrant.event.v1","seq":1,"ts":"2026-11-17T23:13:29.313Z","prev":"7a5a274fb63994f386e1eacee51b8c3d28d1e020ad03ae22d2dfd4d137def119","event":{"type":"decision.made","decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"hash":"705034676235353d33df383c2702ee79408d73458241f73b6f20ee07b4441b3c"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (5,2,1794957209313,X'344AE45FACFBA6C4CB562B364F4E4F87C00F4E3EFC8BB2E62A6BF1F5A612F478','{"version":"warrant.event.v1","seq":2,"ts":"2026-11-17T23:13:29.313Z","prev":"705034676235353d33df383c2702ee79408d73458241f73b6f20ee07b4441b3c","event":{"type":"policy.evaluated","decision":"allow","reason":"policy allows this run"},"hash":"344ae45facfba6c4cb562b364f4e4f87c00f4e3efc8bb2e62a6bf1f5a612f478"}');
INSERT INTO receipts (run,hash,body,created_at) VALUES (1,X'EDD3243E1DF3D073F736C1E87A79268868336D2F37785A7FC286A7C1C00B9AEF','{"runId":"run_d0af306f-32a1-4071-a03e-945f7356a22d","contractHash":"7a024f5e3fe00699b8c5e0b8bb9f81cf104b19f76a03050f6d234ea1905d8ce0","runner":{"runnerId":"rnr_6eba3a3b-3ba4-4a5b-800e-e72bf8246890","keyId":"ed25519:5ba253e0afd76995","pool":"default","attestationTier":"mock","isolation":"process"},"startedAt":"2026-11-17T23:13:29.285Z","endedAt":"2026-11-17T23:13:29.293Z","status":"completed","eventsHead":"b2bc26523b7ad0ebb42912fe8d77d698fd74fa20a566bd60f189570fa93f30cc","eventCount":6,"workspaceIn":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","manifestHash":"d1edc8930a0dcea88fe7e5fb3bd6579e3d28040c0f4aa26256b3cd39e93c8766"},"workspaceOut":{"diffHash":"","artifactHashes":[]},"secretsReleased":[],"networkAccessed":[],"modelsUsed":[],"boundaryDisclosures":[],"version":"warrant.receipt.v1","signatures":[{"keyId":"ed25519:5ba253e0afd76995","alg":"ed25519","signer":"runner","sig":"ERvq8Hujh9J0XTXsJ90nAO1qCDpftho03uU2JwBr8z3PmOMfRKHlQCynNEzgIyDctR8t+/ClyPC/qrlmlC3WDw=="},{"keyId":"ed25519:182bb489ac379756","alg":"ed25519","signer":"plane","sig":"eSgDPpIhZF1RWAa/wiG5xV6Nj+go0H+O3AnMAIebwL/Z0bylUbwzTLbyAonBkoQf9XdK5DKGlp/d7gZXscQqDw=="}]}',1794957209293);
INSERT INTO receipts (run,hash,body,created_at) VALUES (2,X'32D8DBD46915DF8DEF38B4370DFF85876526C05A38EC230E59C4490D8827A386','{"runId":"run_a8d48f89-4f5e-415e-a024-58c62118011e","contractHash":"e343cd608c0cdd15dfe7610f250361e5f10af80efcdfe2c425f01803786ddf87","runner":{"runnerId":"rnr_6eba3a3b-3ba4-4a5b-800e-e72bf8246890","keyId":"ed25519:5ba253e0afd76995","pool":"default","attestationTier":"mock","isolation":"process"},"startedAt":"2026-11-17T23:13:29.294Z","endedAt":"2026-11-17T23:13:29.296Z","status":"completed","eventsHead":"446cac01bd07981d8461a1c176f34aad8b1be018aa30be5d4bb78f1e04dde301","eventCount":6,"workspaceIn":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","manifestHash":"d1edc8930a0dcea88fe7e5fb3bd6579e3d28040c0f4aa26256b3cd39e93c8766"},"workspaceOut":{"diffHash":"","artifactHashes":[]},"secretsReleased":[],"networkAccessed":[],"modelsUsed":[],"boundaryDisclosures":[],"version":"warrant.receipt.v1","signatures":[{"keyId":"ed25519:5ba253e0afd76995","alg":"ed25519","signer":"runner","sig":"wwgRJIs3LrpxwASy7WdVf2Alf/BMAQsUOEaB1npxVhPL54ebl9ny0XML3Xkp0dvbafY1fmjZtyphNvvG/nFtCQ=="},{"keyId":"ed25519:182bb489ac379756","alg":"ed25519","signer":"plane","sig":"2Cf8rX0y/+6A9Fo6ovt0wur/AQ4xIXDbh1Oms8g+gRdiMwdTWzWOzn7dX0mAJKff7Tey22IQficKtNGYM41fBA=="}]}',1794957209296);
INSERT INTO receipts (run,hash,body,created_at) VALUES (3,X'96C2533F7A52CB765211FAC2FBBEF8F4B50622401BB09E4B2191AD43E6788571','{"runId":"run_b73773f1-1d83-4a77-8674-c9bc3a7b819a","contractHash":"c2e9fb8d837312965fea4fd3d665233ff8002f46775fe467c01b8f85c2acd8c3","runner":{"runnerId":"rnr_plane","keyId":"ed25519:182bb489ac379756","pool":"default","attestationTier":"mock"},"startedAt":"2026-11-17T23:13:29.304Z","endedAt":"2026-11-17T23:13:29.304Z","status":"failed","eventsHead":"8824398220de0e40aeb512593a06f2e01bbf633d7ec8b2e5d3d2c5b30d9887ba","eventCount":5,"workspaceIn":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","manifestHash":"d1edc8930a0dcea88fe7e5fb3bd6579e3d28040c0f4aa26256b3cd39e93c8766"},"workspaceOut":{"diffHash":"","artifactHashes":[]},"secretsReleased":[],"networkAccessed":[],"modelsUsed":[],"boundaryDisclosures":[],"sealedBy":"plane","decision":{"decision":"deny","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"outcome":{"kind":"denied"},"usage":{},"version":"warrant.receipt.v1","signatures":[{"keyId":"ed25519:182bb489ac379756","alg":"ed25519","signer":"runner","sig":"aL7+9j2pyy4wqXMvELMh2o9APBGG2TeFeo2k5OZ9Sg4QNBbBRXEa1LHcxaXCC4Vq21cxmKHW3ChDAZ7rJ9lcCQ=="},{"keyId":"ed25519:182bb489ac379756","alg":"ed25519","signer":"plane","sig":"aL7+9j2pyy4wqXMvELMh2o9APBGG2TeFeo2k5OZ9Sg4QNBbBRXEa1LHcxaXCC4Vq21cxmKHW3ChDAZ7rJ9lcCQ=="}]}',1794957209304);
INSERT INTO blobs (digest,size,content,created_at) VALUES (X'246F240A8AA3C6302117FBC23346D173AF60495D067433BF99E21F300C0F3925',12,X'6120736D616C6C20626C6F62',1794957209313);
INSERT INTO clocks (name,value) VALUES ('starts',2);
INSERT INTO clocks (name,value) VALUES ('turn:default',2);
INSERT INTO turns (pool,requester,turn) VALUES ('default','human:alice',3);
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (1,'echo one','{"summary":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"echo one","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}','{"runId":"run_d0af306f-32a1-4071-a03e-945f7356a22d","issuedAt":"2026-11-17T23:13:29.285Z","issuer":{"keyId":"ed25519:182bb489ac379756","role":"plane"},"requestedBy":{"kind":"human","id":"alice"},"agent":{"kind":"command"},"task":{"prompt":"echo one"},"runner":{"pool":"default"},"workspace":{"version":"warrant.manifest.v1","baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","untrackedFiles":[],"deniedPatterns":[],"deniedPaths":[]},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"network":{"defaultDeny":true,"allowHosts":[]},"budget":{},"disclosure":"redacted","execution":{"kind":"shell","script":"echo one"},"expiresAt":"2026-11-18T00:13:29.285Z","requestHash":"a7488175a83a1b2de16995454070e9bf7bb1b8b143c5e8276eff177da9d2b627","decision":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"version":"warrant.contract.v1","signatures":[{"keyId":"ed25519:182bb489ac379756","alg":"ed25519","signer":"plane","sig":"/fCpnaBGMOF1ZCpKJUa/5OzMCY/qqe4WRp4HhwmCOUo+MPd0rIt+5NLfAGitQnLzrAm/cXZK1nCl4bhW/p1FAQ=="}]}');
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (2,'echo two','{"summary":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"echo two","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}','{"runId":"run_a8d48f89-4f5e-415e-a024-58c62118011e","issuedAt":"2026-11-17T23:13:29.294Z","issuer":{"keyId":"ed25519:182bb489ac379756","role":"plane"},"requestedBy":{"kind":"human","id":"alice"},"agent":{"kind":"command"},"task":{"prompt":"echo two"},"runner":{"pool":"default"},"workspace":{"version":"warrant.manifest.v1","baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","untrackedFiles":[],"deniedPatterns":[],"deniedPaths":[]},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"network":{"defaultDeny":true,"allowHosts":[]},"budget":{},"disclosure":"redacted","execution":{"kind":"shell","script":"echo two"},"expiresAt":"2026-11-18T00:13:29.294Z","requestHash":"4425adab35eccd96d54c04fe0d32f022de5715ae8f865c850db0c0b6b39bc481","decision":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"version":"warrant.contract.v1","signatures":[{"keyId":"ed25519:182bb489ac379756","alg":"ed25519","signer":"plane","sig":"SMH+ShH+hHz45SNpXcFTKKiUoPI/LId/phHlIbwVBUww5VqPuq/6ADmaBt/CquCGXaMlRx8AeoQ5eKTvs2OsCg=="}]}');
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (3,'rm -rf /','{"summary":{"decision":"deny","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"rm -rf /","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}','{"runId":"run_b73773f1-1d83-4a77-8674-c9bc3a7b819a","issuedAt":"2026-11-17T23:13:29.304Z","issuer":{"keyId":"ed25519:182bb489ac379756","role":"plane"},"requestedBy":{"kind":"human","id":"alice"},"agent":{"kind":"command"},"task":{"prompt":"rm -rf /"},"runner":{"pool":"default"},"workspace":{"version":"warrant.manifest.v1","baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","untrackedFiles":[],"deniedPatterns":[],"deniedPaths":[]},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"network":{"defaultDeny":true,"allowHosts":[]},"budget":{},"disclosure":"redacted","execution":{"kind":"shell","script":"rm -rf /"},"expiresAt":"2026-11-17T23:13:29.304Z","requestHash":"3420c6174b9bf1851358ec4fa39c970b1f8d235d8606910c61a5a81fdae7bbc4","decision":{"decision":"deny","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"critical":["decision"],"version":"warrant.contract.v1","signatures":[{"keyId":"ed25519:182bb489ac379756","alg":"ed25519","signer":"plane","sig":"0VrqovwpICqaGpWW4DevNnB1W/OhqmCMa/eSUXkMYhu87t28otUotqOCIH2QwtS/pKj89xxTtXc0igaeOjh7AQ=="}]}');
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (4,'git push','{"summary":{"decision":"ask","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","level":1},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[{"name":"any-run","level":1,"approvers":["bob"],"quorum":1}],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"git push","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}',NULL);
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (5,'echo three','{"summary":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"echo three","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}','{"runId":"run_071c46f8-bd34-408e-a266-e2c753e418f2","issuedAt":"2026-11-17T23:13:29.313Z","issuer":{"keyId":"ed25519:182bb489ac379756","role":"plane"},"requestedBy":{"kind":"human","id":"alice"},"agent":{"kind":"command"},"task":{"prompt":"echo three"},"runner":{"pool":"default"},"workspace":{"version":"warrant.manifest.v1","baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","untrackedFiles":[],"deniedPatterns":[],"deniedPaths":[]},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"network":{"defaultDeny":true,"allowHosts":[]},"budget":{},"disclosure":"redacted","execution":{"kind":"shell","script":"echo three"},"expiresAt":"2026-11-18T00:13:29.313Z","requestHash":"a4f9be47e0e2407ffad0c587b7c12e9c6a79620728ba0d1c7d3ec427f48bc16d","decision":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"version":"warrant.contract.v1","signatures":[{"keyId":"ed25519:182bb489ac379756","alg":"ed25519","signer":"plane","sig":"I9668e74xPE9+NJhifzgTIZ8SewJaMmOoAHV73ZzHHqVpDjQvc3ji0z12ldnmyKxh3NBAMUCQIZti8DL6cHnDw=="}]}');
CREATE INDEX events_by_time ON events (ts, run, seq);
CREATE TRIGGER events_stay BEFORE UPDATE ON events
  BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER receipts_stay BEFORE UPDATE ON receipts
  BEGIN SELECT RAISE(ABORT, 'receipts are append-only'); END;
CREATE INDEX runs_queue ON runs (pool, priority DESC, turn, seq) WHERE state = 'queued';
CREATE TRIGGER events_last BEFORE DELETE ON events
  WHEN OLD.run NOT IN (SELECT run FROM sweeping)
  BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER receipts_last BEFORE DELETE ON receipts
  WHEN OLD.run NOT IN (SELECT run FROM sweeping)
  BEGIN SELECT RAISE(ABORT, 'receipts are append-only'); END;
CREATE TRIGGER runs_last BEFORE DELETE ON runs
  WHEN OLD.seq NOT IN (SELECT run FROM sweeping)
  BEGIN SELECT RAISE(ABORT, 'runs are append-only'); END;
CREATE UNIQUE INDEX records_by_hash ON records (hash);
CREATE INDEX sessions_by_owner ON sessions (owner, created_at DESC, session);
CREATE TRIGGER records_stay BEFORE UPDATE ON records
  BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
CREATE INDEX runs_by_pool ON runs (pool, seq, requested_by, agent_kind);
CREATE INDEX runs_by_requester ON runs (requested_by, seq, pool, agent_kind);
CREATE INDEX runs_by_agent ON runs (agent_kind, seq, pool, requested_by);
CREATE TRIGGER requests_stay BEFORE UPDATE OF request_hash ON runs
  WHEN NEW.request_hash IS NOT OLD.request_hash
  BEGIN SELECT RAISE(ABORT, 'a request and a contract never change'); END;
CREATE TRIGGER papers_stay BEFORE UPDATE ON papers
  WHEN OLD.contract IS NOT NULL OR NEW.request IS NOT OLD.request
       OR NEW.prompt IS NOT OLD.prompt OR NEW.judgment IS NOT OLD.judgment
  BEGIN SELECT RAISE(ABORT, 'a request and a contract never change'); END;
CREATE TRIGGER papers_last BEFORE DELETE ON papers
  WHEN OLD.run NOT IN (SELECT run FROM sweeping)
  BEGIN SELECT RAISE(ABORT, 'runs are append-only'); END;
CREATE INDEX runs_by_state ON runs (state, seq, pool, requested_by, agent_kind);
CREATE INDEX reports_by_owner ON reports (owner, created_at, id);
CREATE TRIGGER false_claims_stay BEFORE UPDATE ON false_claims
  BEGIN SELECT RAISE(ABORT, 'false claims are append-only'); END;
CREATE INDEX runs_by_time ON runs (requested_by, created_at);
CREATE INDEX runs_denied ON runs (requested_by, created_at) WHERE state = 'denied';
CREATE INDEX blob_uploaders_by_digest ON blob_uploaders (digest);
CREATE INDEX approvals_by_approver ON approvals (approver, run);
CREATE INDEX blob_runs_by_run ON blob_runs (run);
PRAGMA user_version = 7;
COMMIT;
