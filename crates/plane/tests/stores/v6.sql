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
, priority INTEGER NOT NULL DEFAULT 0, turn INTEGER NOT NULL DEFAULT 0, stop_by TEXT, stop_at INTEGER, is_local INTEGER NOT NULL DEFAULT 0) STRICT;
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
, abilities TEXT) STRICT, WITHOUT ROWID;
CREATE TABLE enroll_tokens (
  token_hash BLOB PRIMARY KEY,
  pool TEXT,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at INTEGER
) STRICT, WITHOUT ROWID;
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
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local) VALUES (1,'run_e8fff28a-fd4a-4e52-88ed-46c50566d918','completed',1,NULL,'rnr_968887d4-6db4-4571-9e11-70dcc2f5da70',NULL,'default','command',NULL,'human:alice',X'A7488175A83A1B2DE16995454070E9BF7BB1B8B143C5E8276EFF177DA9D2B627',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794946965553,1794946965573,NULL,X'2322A01EF38C941A2C9A0AC87BA3182F5660327832EF5F3CBF267FC32A60493B',6,NULL,0,1,NULL,NULL,1);
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local) VALUES (2,'run_ca3b2fb8-f785-4901-8f2a-ce68795bfe07','completed',1,NULL,'rnr_968887d4-6db4-4571-9e11-70dcc2f5da70',NULL,'default','command',NULL,'human:alice',X'4425ADAB35ECCD96D54C04FE0D32F022DE5715AE8F865C850DB0C0B6B39BC481',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794946965585,1794946965593,NULL,X'566660B271B56FD98CED814CF666E05701AE560152D51F2E50E7CF469D4B87B4',6,NULL,0,2,NULL,NULL,1);
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local) VALUES (3,'run_ebecafee-3d15-40de-93ac-8ca4d2d7566a','denied',0,NULL,NULL,NULL,'default','command',NULL,'human:alice',X'3420C6174B9BF1851358EC4FA39C970B1F8D235D8606910C61A5A81FDAE7BBC4',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794946965605,1794946965605,NULL,X'43FA0FC9F746345D38C394F0FEF21D591E9274651BF2DA9B21F71782146520E0',5,NULL,0,0,NULL,NULL,1);
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local) VALUES (4,'run_b2712cf5-003d-48cf-bfa9-1698a030d938','awaiting_approval',0,NULL,NULL,NULL,'default','command',NULL,'human:alice',X'503EE1C60053012C8B3715F9BE3DD23C6C6CBAE29709155638360BD3F4A9BDC6',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794946965636,1794946965636,1794947025636,NULL,0,NULL,0,0,NULL,NULL,1);
INSERT INTO runs (seq,id,state,epoch,owner,runner,lease_until,pool,agent_kind,isolation,requested_by,request_hash,policy_hash,created_at,updated_at,deadline,head,event_count,idempotency,priority,turn,stop_by,stop_at,is_local) VALUES (5,'run_1422fb6d-419e-4abc-af03-3c956b2ab602','queued',0,NULL,NULL,NULL,'default','command',NULL,'human:alice',X'A4F9BE47E0E2407FFAD0C587B7C12E9C6A79620728BA0D1C7D3EC427F48BC16D',X'823412D1EACB67956220E532959F0104603057C88704863CA38E7CD188FDA812',1794946965641,1794946965641,NULL,X'45A7C1A818E5B053B8AB80383361D52F293B5FABFCE4E613F62E986E637EA5BA',3,NULL,0,3,NULL,NULL,1);
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,0,1794946965553,X'39DFDDAE8937AE64BFDEC56ED2B09648DA97ECD2D48F8F6885E621DA2CD4F4D8','{"version":"warrant.event.v1","seq":0,"ts":"2026-11-17T20:22:45.553Z","prev":"1979d500b20a9266f7d589787ca4910f402cd2f2341fa853c9cfa079854674db","event":{"type":"run.created"},"hash":"39dfddae8937ae64bfdec56ed2b09648da97ecd2d48f8f6885e621da2cd4f4d8"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,1,1794946965553,X'99C61174065F6B4CA2A8D54FA058880EAA1BFF363802E78E2C9EA72F73BC7462','{"version":"warrant.event.v1","seq":1,"ts":"2026-11-17T20:22:45.553Z","prev":"39dfddae8937ae64bfdec56ed2b09648da97ecd2d48f8f6885e621da2cd4f4d8","event":{"type":"decision.made","decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"hash":"99c61174065f6b4ca2a8d54fa058880eaa1bff363802e78e2c9ea72f73bc7462"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,2,1794946965553,X'2DBB27726C0B509F003B8F428EE5CF1103A23B34677C1B0B27A2A90A422EBBDB','{"version":"warrant.event.v1","seq":2,"ts":"2026-11-17T20:22:45.553Z","prev":"99c61174065f6b4ca2a8d54fa058880eaa1bff363802e78e2c9ea72f73bc7462","event":{"type":"policy.evaluated","decision":"allow","reason":"policy allows this run"},"hash":"2dbb27726c0b509f003b8f428ee5cf1103a23b34677c1b0b27a2a90a422ebbdb"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,3,1794946965557,X'8AD49997A5329ECE9A6E2C1550AB75020AC5CAEBA5006933B3BB27FFEE5A1B66','{"version":"warrant.event.v1","seq":3,"ts":"2026-11-17T20:22:45.557Z","prev":"2dbb27726c0b509f003b8f428ee5cf1103a23b34677c1b0b27a2a90a422ebbdb","event":{"type":"run.claimed","runnerId":"rnr_968887d4-6db4-4571-9e11-70dcc2f5da70","runnerKeyId":"ed25519:c85a465efc72ce0c","epoch":1},"hash":"8ad49997a5329ece9a6e2c1550ab75020ac5caeba5006933b3bb27ffee5a1b66"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,4,1794946965559,X'5227E82D7C43C6E1A9E8EF35E0C764BE8E1F0BBD4CDC324B3DA94D97EA73BCB5','{"version":"warrant.event.v1","seq":4,"ts":"2026-11-17T20:22:45.559Z","prev":"8ad49997a5329ece9a6e2c1550ab75020ac5caeba5006933b3bb27ffee5a1b66","event":{"type":"run.started","epoch":1,"lamport":1},"hash":"5227e82d7c43c6e1a9e8ef35e0c764be8e1f0bbd4cdc324b3da94d97ea73bcb5"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (1,5,1794946965573,X'2322A01EF38C941A2C9A0AC87BA3182F5660327832EF5F3CBF267FC32A60493B','{"version":"warrant.event.v1","seq":5,"ts":"2026-11-17T20:22:45.573Z","prev":"5227e82d7c43c6e1a9e8ef35e0c764be8e1f0bbd4cdc324b3da94d97ea73bcb5","event":{"type":"run.completed"},"hash":"2322a01ef38c941a2c9a0ac87ba3182f5660327832ef5f3cbf267fc32a60493b"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,0,1794946965585,X'1A1C99AE36B35DD186D478F29B47D4D5547C036C37840A9414081E795136F363','{"version":"warrant.event.v1","seq":0,"ts":"2026-11-17T20:22:45.585Z","prev":"7dd69ca8a45cfb8fbbf0c0060f68bd78acf06db3724b778dba1e759a0a2d3f1f","event":{"type":"run.created"},"hash":"1a1c99ae36b35dd186d478f29b47d4d5547c036c37840a9414081e795136f363"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,1,1794946965585,X'850A7B83504C8012CD552AA4CC7B1A0902BC120E8A83F0ED48E460AE4AC461E7','{"version":"warrant.event.v1","seq":1,"ts":"2026-11-17T20:22:45.585Z","prev":"1a1c99ae36b35dd186d478f29b47d4d5547c036c37840a9414081e795136f363","event":{"type":"decision.made","decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"hash":"850a7b83504c8012cd552aa4cc7b1a0902bc120e8a83f0ed48e460ae4ac461e7"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,2,1794946965585,X'688273BACC626F68EF68D08C40DA48FB011C16A88BE0A72CC8EF5CEC542C7941','{"version":"warrant.event.v1","seq":2,"ts":"2026-11-17T20:22:45.585Z","prev":"850a7b83504c8012cd552aa4cc7b1a0902bc120e8a83f0ed48e460ae4ac461e7","event":{"type":"policy.evaluated","decision":"allow","reason":"policy allows this run"},"hash":"688273bacc626f68ef68d08c40da48fb011c16a88be0a72cc8ef5cec542c7941"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,3,1794946965586,X'F6973F5CD588571A5B36521E15DE75306F018EEA82BA701011795AD0F07B0A09','{"version":"warrant.event.v1","seq":3,"ts":"2026-11-17T20:22:45.586Z","prev":"688273bacc626f68ef68d08c40da48fb011c16a88be0a72cc8ef5cec542c7941","event":{"type":"run.claimed","runnerId":"rnr_968887d4-6db4-4571-9e11-70dcc2f5da70","runnerKeyId":"ed25519:c85a465efc72ce0c","epoch":1},"hash":"f6973f5cd588571a5b36521e15de75306f018eea82ba701011795ad0f07b0a09"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,4,1794946965586,X'9121B041934429018FC0C83DA8DB71CCD35B777DEF61037E51E468581F11349C','{"version":"warrant.event.v1","seq":4,"ts":"2026-11-17T20:22:45.586Z","prev":"f6973f5cd588571a5b36521e15de75306f018eea82ba701011795ad0f07b0a09","event":{"type":"run.started","epoch":1,"lamport":2},"hash":"9121b041934429018fc0c83da8db71ccd35b777def61037e51e468581f11349c"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (2,5,1794946965593,X'566660B271B56FD98CED814CF666E05701AE560152D51F2E50E7CF469D4B87B4','{"version":"warrant.event.v1","seq":5,"ts":"2026-11-17T20:22:45.593Z","prev":"9121b041934429018fc0c83da8db71ccd35b777def61037e51e468581f11349c","event":{"type":"run.completed"},"hash":"566660b271b56fd98ced814cf666e05701ae560152d51f2e50e7cf469d4b87b4"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,0,1794946965605,X'50EEB6AA996DF75A9906EC498BCD842AB3856F2F6409F191D9AE7A014B5571FB','{"version":"warrant.event.v1","seq":0,"ts":"2026-11-17T20:22:45.605Z","prev":"d79de0d581aa47159ca1c6903514cff0125aa4f74e737198624c97b0aefc407d","event":{"type":"run.created"},"hash":"50eeb6aa996df75a9906ec498bcd842ab3856f2f6409f191d9ae7a014b5571fb"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,1,1794946965605,X'98F8E52E4C3386CFBD21FA0F7EEA9B0214B9D412BD61C5BCA5C56550A51D06C9','{"version":"warrant.event.v1","seq":1,"ts":"2026-11-17T20:22:45.605Z","prev":"50eeb6aa996df75a9906ec498bcd842ab3856f2f6409f191d9ae7a014b5571fb","event":{"type":"decision.made","decision":"deny","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"hash":"98f8e52e4c3386cfbd21fa0f7eea9b0214b9d412bd61c5bca5c56550a51d06c9"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,2,1794946965605,X'A9410A63AE7A4C00A6E4B8A788B4732E0997D6937F254876B9254B45FCFC2228','{"version":"warrant.event.v1","seq":2,"ts":"2026-11-17T20:22:45.605Z","prev":"98f8e52e4c3386cfbd21fa0f7eea9b0214b9d412bd61c5bca5c56550a51d06c9","event":{"type":"policy.evaluated","decision":"deny","reason":"policy denied: "},"hash":"a9410a63ae7a4c00a6e4b8a788b4732e0997d6937f254876b9254b45fcfc2228"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,3,1794946965605,X'C284520EDD3FD47AA0E1C76D2E7F58AD86E097D4B9ABDC588A4C785A082E8E88','{"version":"warrant.event.v1","seq":3,"ts":"2026-11-17T20:22:45.605Z","prev":"a9410a63ae7a4c00a6e4b8a788b4732e0997d6937f254876b9254b45fcfc2228","event":{"type":"outcome.recorded","outcome":{"kind":"denied"},"usage":{}},"hash":"c284520edd3fd47aa0e1c76d2e7f58ad86e097d4b9abdc588a4c785a082e8e88"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (3,4,1794946965605,X'43FA0FC9F746345D38C394F0FEF21D591E9274651BF2DA9B21F71782146520E0','{"version":"warrant.event.v1","seq":4,"ts":"2026-11-17T20:22:45.605Z","prev":"c284520edd3fd47aa0e1c76d2e7f58ad86e097d4b9abdc588a4c785a082e8e88","event":{"type":"run.failed","failure":"policy_denied","message":"policy denied: "},"hash":"43fa0fc9f746345d38c394f0fef21d591e9274651bf2da9b21f71782146520e0"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (5,0,1794946965641,X'84736CAD7EB79327D392CB4D6C7AF24135423D89C6FB34850BE66A94DFE947D6','{"version":"warrant.event.v1","seq":0,"ts":"2026-11-17T20:22:45.641Z","prev":"51bc75de2772607c343252a52806a83cbd7cbc0aa813d82bfc74afa96f9970ff","event":{"type":"run.created"},"hash":"84736cad7eb79327d392cb4d6c7af24135423d89c6fb34850be66a94dfe947d6"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (5,1,1794946965641,X'F9CC1E81950BD08031B983EF1F4A07BEBC2D29D119ABD8B4CCCB1EBA0A2B419A','{"version":"warrant.event.v1","seq":1,"ts":"2026-11-17T20:22:45.641Z","prev":"84736cad7eb79327d392cb4d6c7af24135423d89c6fb34850be66a94dfe947d6","event":{"type":"decision.made","decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"hash":"f9cc1e81950bd08031b983ef1f4a07bebc2d29d119abd8b4cccb1eba0a2b419a"}');
INSERT INTO events (run,seq,ts,hash,body) VALUES (5,2,1794946965641,X'45A7C1A818E5B053B8AB80383361D52F293B5FABFCE4E613F62E986E637EA5BA','{"version":"warrant.event.v1","seq":2,"ts":"2026-11-17T20:22:45.641Z","prev":"f9cc1e81950bd08031b983ef1f4a07bebc2d29d119abd8b4cccb1eba0a2b419a","event":{"type":"policy.evaluated","decision":"allow","reason":"policy allows this run"},"hash":"45a7c1a818e5b053b8ab80383361d52f293b5fabfce4e613f62e986e637ea5ba"}');
INSERT INTO receipts (run,hash,body,created_at) VALUES (1,X'DAF7EE054D7AC1402E35B8B8A1FBD0E40D117FD6EF2C61D8E9B3390A5BA35D3C','{"runId":"run_e8fff28a-fd4a-4e52-88ed-46c50566d918","contractHash":"1979d500b20a9266f7d589787ca4910f402cd2f2341fa853c9cfa079854674db","runner":{"runnerId":"rnr_968887d4-6db4-4571-9e11-70dcc2f5da70","keyId":"ed25519:c85a465efc72ce0c","pool":"default","attestationTier":"mock","isolation":"process"},"startedAt":"2026-11-17T20:22:45.553Z","endedAt":"2026-11-17T20:22:45.573Z","status":"completed","eventsHead":"2322a01ef38c941a2c9a0ac87ba3182f5660327832ef5f3cbf267fc32a60493b","eventCount":6,"workspaceIn":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","manifestHash":"d1edc8930a0dcea88fe7e5fb3bd6579e3d28040c0f4aa26256b3cd39e93c8766"},"workspaceOut":{"diffHash":"","artifactHashes":[]},"secretsReleased":[],"networkAccessed":[],"modelsUsed":[],"boundaryDisclosures":[],"version":"warrant.receipt.v1","signatures":[{"keyId":"ed25519:c85a465efc72ce0c","alg":"ed25519","signer":"runner","sig":"jZbShfVYVRCO/4Reh/Igg9cWgFL3xPi4mL3f+8gM9BlgQX9E674PyU5adg4MJyTrMsqxQXzTl93It34OvBn2DA=="},{"keyId":"ed25519:8d6b8a9b8b9035e9","alg":"ed25519","signer":"plane","sig":"E1q0UtEt483evTcLcW9rjm0kk9zg6Ms5QHlKZXt+B+Ar7+UYRgkB/30ESbXCu00N935u0QeHswZjMk+xs+ZADg=="}]}',1794946965573);
INSERT INTO receipts (run,hash,body,created_at) VALUES (2,X'EBB4F6646EE8F89882B9E17296EA1E07E7443BC568F16E24C3A819BC0607F377','{"runId":"run_ca3b2fb8-f785-4901-8f2a-ce68795bfe07","contractHash":"7dd69ca8a45cfb8fbbf0c0060f68bd78acf06db3724b778dba1e759a0a2d3f1f","runner":{"runnerId":"rnr_968887d4-6db4-4571-9e11-70dcc2f5da70","keyId":"ed25519:c85a465efc72ce0c","pool":"default","attestationTier":"mock","isolation":"process"},"startedAt":"2026-11-17T20:22:45.585Z","endedAt":"2026-11-17T20:22:45.593Z","status":"completed","eventsHead":"566660b271b56fd98ced814cf666e05701ae560152d51f2e50e7cf469d4b87b4","eventCount":6,"workspaceIn":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","manifestHash":"d1edc8930a0dcea88fe7e5fb3bd6579e3d28040c0f4aa26256b3cd39e93c8766"},"workspaceOut":{"diffHash":"","artifactHashes":[]},"secretsReleased":[],"networkAccessed":[],"modelsUsed":[],"boundaryDisclosures":[],"version":"warrant.receipt.v1","signatures":[{"keyId":"ed25519:c85a465efc72ce0c","alg":"ed25519","signer":"runner","sig":"qwrWWtxoGcvyi1clO+LmLYxExP5e94NyvB0KhWonMgfs5m0avMh1kxnF7vB96MMzc+1ogaahuTtQb1w20YG6Bw=="},{"keyId":"ed25519:8d6b8a9b8b9035e9","alg":"ed25519","signer":"plane","sig":"WNsce5kl4pLmqI8SZyozZsg3f1XLs4jfeVAbpx1DqgsE0M3d3JuR//e+g4ftKeGpsZiGBg+WmZiUzCvRnh5MAA=="}]}',1794946965593);
INSERT INTO receipts (run,hash,body,created_at) VALUES (3,X'7061469CDD91E025B00C7F1865E6D261B4030D252020C5B73A84BE57F7B004EC','{"runId":"run_ebecafee-3d15-40de-93ac-8ca4d2d7566a","contractHash":"d79de0d581aa47159ca1c6903514cff0125aa4f74e737198624c97b0aefc407d","runner":{"runnerId":"rnr_plane","keyId":"ed25519:8d6b8a9b8b9035e9","pool":"default","attestationTier":"mock"},"startedAt":"2026-11-17T20:22:45.605Z","endedAt":"2026-11-17T20:22:45.605Z","status":"failed","eventsHead":"43fa0fc9f746345d38c394f0fef21d591e9274651bf2da9b21f71782146520e0","eventCount":5,"workspaceIn":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","manifestHash":"d1edc8930a0dcea88fe7e5fb3bd6579e3d28040c0f4aa26256b3cd39e93c8766"},"workspaceOut":{"diffHash":"","artifactHashes":[]},"secretsReleased":[],"networkAccessed":[],"modelsUsed":[],"boundaryDisclosures":[],"sealedBy":"plane","decision":{"decision":"deny","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"outcome":{"kind":"denied"},"usage":{},"version":"warrant.receipt.v1","signatures":[{"keyId":"ed25519:8d6b8a9b8b9035e9","alg":"ed25519","signer":"runner","sig":"tlKGYh2ee6h7sIiA54PqsZqn+SYEy2fGYe6LnLfVGFQ7BxTK3IeZJaIGafZJIqxQx4T/cVkcE9W8yai801+zBQ=="},{"keyId":"ed25519:8d6b8a9b8b9035e9","alg":"ed25519","signer":"plane","sig":"tlKGYh2ee6h7sIiA54PqsZqn+SYEy2fGYe6LnLfVGFQ7BxTK3IeZJaIGafZJIqxQx4T/cVkcE9W8yai801+zBQ=="}]}',1794946965605);
INSERT INTO blobs (digest,size,content,created_at) VALUES (X'246F240A8AA3C6302117FBC23346D173AF60495D067433BF99E21F300C0F3925',12,X'6120736D616C6C20626C6F62',1794946965641);
INSERT INTO clocks (name,value) VALUES ('starts',2);
INSERT INTO clocks (name,value) VALUES ('turn:default',2);
INSERT INTO turns (pool,requester,turn) VALUES ('default','human:alice',3);
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (1,'echo one','{"summary":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"echo one","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}','{"runId":"run_e8fff28a-fd4a-4e52-88ed-46c50566d918","issuedAt":"2026-11-17T20:22:45.553Z","issuer":{"keyId":"ed25519:8d6b8a9b8b9035e9","role":"plane"},"requestedBy":{"kind":"human","id":"alice"},"agent":{"kind":"command"},"task":{"prompt":"echo one"},"runner":{"pool":"default"},"workspace":{"version":"warrant.manifest.v1","baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","untrackedFiles":[],"deniedPatterns":[],"deniedPaths":[]},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"network":{"defaultDeny":true,"allowHosts":[]},"budget":{},"disclosure":"redacted","execution":{"kind":"shell","script":"echo one"},"expiresAt":"2026-11-17T21:22:45.553Z","requestHash":"a7488175a83a1b2de16995454070e9bf7bb1b8b143c5e8276eff177da9d2b627","decision":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"version":"warrant.contract.v1","signatures":[{"keyId":"ed25519:8d6b8a9b8b9035e9","alg":"ed25519","signer":"plane","sig":"4s1bZPydE4q+HFHfg4Wk2mHlCQ2p3MUckOzTmjUxCjt4gMNQT+cGFJ90omx29m2spwOAK1JkQPDlp6FoDjuSDQ=="}]}');
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (2,'echo two','{"summary":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"echo two","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}','{"runId":"run_ca3b2fb8-f785-4901-8f2a-ce68795bfe07","issuedAt":"2026-11-17T20:22:45.585Z","issuer":{"keyId":"ed25519:8d6b8a9b8b9035e9","role":"plane"},"requestedBy":{"kind":"human","id":"alice"},"agent":{"kind":"command"},"task":{"prompt":"echo two"},"runner":{"pool":"default"},"workspace":{"version":"warrant.manifest.v1","baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","untrackedFiles":[],"deniedPatterns":[],"deniedPaths":[]},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"network":{"defaultDeny":true,"allowHosts":[]},"budget":{},"disclosure":"redacted","execution":{"kind":"shell","script":"echo two"},"expiresAt":"2026-11-17T21:22:45.585Z","requestHash":"4425adab35eccd96d54c04fe0d32f022de5715ae8f865c850db0c0b6b39bc481","decision":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"version":"warrant.contract.v1","signatures":[{"keyId":"ed25519:8d6b8a9b8b9035e9","alg":"ed25519","signer":"plane","sig":"VfiOd6df3il+T25ptJXveL80e7lI/+sqmL4+2vPrAWnzOpU6lXqgCgo8MszNYn193jyc4dvg0uF7w5x5n+jHBA=="}]}');
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (3,'rm -rf /','{"summary":{"decision":"deny","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"rm -rf /","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}','{"runId":"run_ebecafee-3d15-40de-93ac-8ca4d2d7566a","issuedAt":"2026-11-17T20:22:45.605Z","issuer":{"keyId":"ed25519:8d6b8a9b8b9035e9","role":"plane"},"requestedBy":{"kind":"human","id":"alice"},"agent":{"kind":"command"},"task":{"prompt":"rm -rf /"},"runner":{"pool":"default"},"workspace":{"version":"warrant.manifest.v1","baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","untrackedFiles":[],"deniedPatterns":[],"deniedPaths":[]},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"network":{"defaultDeny":true,"allowHosts":[]},"budget":{},"disclosure":"redacted","execution":{"kind":"shell","script":"rm -rf /"},"expiresAt":"2026-11-17T20:22:45.605Z","requestHash":"3420c6174b9bf1851358ec4fa39c970b1f8d235d8606910c61a5a81fdae7bbc4","decision":{"decision":"deny","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"critical":["decision"],"version":"warrant.contract.v1","signatures":[{"keyId":"ed25519:8d6b8a9b8b9035e9","alg":"ed25519","signer":"plane","sig":"MNADrFaZOrJeukOSFjoAqKeVCW+mHgh2ktOL7nzLM+QtabLz7Qcrheowiq6A9lTfrIIM5m1fBSG+sVZARP4cAg=="}]}');
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (4,'git push','{"summary":{"decision":"ask","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","level":1},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[{"name":"any-run","level":1,"approvers":["bob"],"quorum":1}],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"git push","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}',NULL);
INSERT INTO papers (run,prompt,judgment,request,contract) VALUES (5,'echo three','{"summary":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"requirements":[],"limits":null,"masks":[],"requiredPosture":[]}','{"agentKind":"command","budget":{},"disclosure":"redacted","network":{"allowHosts":[],"defaultDeny":true},"pool":"default","prompt":"echo three","requestedBy":{"id":"alice","kind":"human"},"secretNames":[],"workspace":{"baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","deniedPaths":[],"deniedPatterns":[],"untrackedFiles":[],"version":"warrant.manifest.v1"}}','{"runId":"run_1422fb6d-419e-4abc-af03-3c956b2ab602","issuedAt":"2026-11-17T20:22:45.641Z","issuer":{"keyId":"ed25519:8d6b8a9b8b9035e9","role":"plane"},"requestedBy":{"kind":"human","id":"alice"},"agent":{"kind":"command"},"task":{"prompt":"echo three"},"runner":{"pool":"default"},"workspace":{"version":"warrant.manifest.v1","baseRef":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","bundleHash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","untrackedFiles":[],"deniedPatterns":[],"deniedPaths":[]},"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812","secrets":[],"network":{"defaultDeny":true,"allowHosts":[]},"budget":{},"disclosure":"redacted","execution":{"kind":"shell","script":"echo three"},"expiresAt":"2026-11-17T21:22:45.641Z","requestHash":"a4f9be47e0e2407ffad0c587b7c12e9c6a79620728ba0d1c7d3ec427f48bc16d","decision":{"decision":"allow","reasons":[],"rules":[],"policyHash":"823412d1eacb67956220e532959f0104603057c88704863ca38e7cd188fda812"},"version":"warrant.contract.v1","signatures":[{"keyId":"ed25519:8d6b8a9b8b9035e9","alg":"ed25519","signer":"plane","sig":"sABXwj9zxDyGUGPrCARIBjFa6FiMOP/3BObc4X+3IKi/fgB/qwYF4RsOJnYEuNJ8xCedLyxqtHNqwa6tLcW6DQ=="}]}');
INSERT INTO blob_runs (digest,run) VALUES (X'E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855',1);
INSERT INTO blob_runs (digest,run) VALUES (X'E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855',2);
INSERT INTO blob_runs (digest,run) VALUES (X'E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855',3);
INSERT INTO blob_runs (digest,run) VALUES (X'E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855',4);
INSERT INTO blob_runs (digest,run) VALUES (X'E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855',5);
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
PRAGMA user_version = 6;
COMMIT;
