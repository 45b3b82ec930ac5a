package store

const sqlInsertEvent = `INSERT INTO events (at, instance_id, task_id, session, pid, what, from_status, to_status, outcome, detail)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// 1 instance or empty, 2 task or empty, 3 what or empty, 4 id, 5 limit.
const sqlEvents = `SELECT id, at, instance_id, task_id, session, pid, what, from_status, to_status, outcome, detail FROM events
	WHERE (?1 = '' OR instance_id = ?1) AND (?2 = '' OR task_id = ?2) AND (?3 = '' OR what = ?3) AND id > ?4
	ORDER BY id DESC LIMIT ?5`

const sqlTrimEvents = `DELETE FROM events WHERE id <= ?`

const sqlPruneEvents = `DELETE FROM events WHERE at < ?`

const sqlLastEvent = `SELECT coalesce(max(id), 0) FROM events`
