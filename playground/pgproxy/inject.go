package pgproxy

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// verdict is what becomes of a statement.
type verdict uint8

const (
	passes verdict = iota
	fails
	shutsDown
	loses
	abandons
)

// injected is the message of errors that come from a chance.
const injected = "injected by the proxy"

// missing is what a database says that lacks features.
func missing(f Features) string { return "not supported by this database: " + f.String() }

// judge draws what becomes of a statement, and counts it. Losses are counted
// when they happen.
func (s *session) judge(f Faults, c class) (verdict, string) {
	if c.rollback {
		// A ROLLBACK that fails would say that a transaction goes on which the
		// client has given up: no server does that.
		return passes, ""
	}
	chance, prefix := f.Fail, failedPrefix
	if c.commit {
		if happens(s.upChance, f.LoseCommitReply) {
			return loses, ""
		}
		if happens(s.upChance, f.AbandonCommit) {
			s.count(CommitsAbandoned)
			return abandons, ""
		}
		chance, prefix = f.FailCommit, failedCommitPrefix
	}
	if !happens(s.upChance, chance) {
		return passes, ""
	}
	code := Serialization
	if len(f.Codes) > 0 {
		code = f.Codes[s.upChance.IntN(len(f.Codes))]
	}
	s.count(prefix + code)
	if strings.HasPrefix(code, "57P") {
		return shutsDown, code
	}
	return fails, code
}

// raise has the server raise an error in the extended protocol, in place of a
// message of the client. The transaction fails and the server reads over the
// rest up to the Sync, as after any error.
func (s *session) raise(code, message string) {
	const name = "pgproxy"
	for _, m := range []struct {
		pgproto3.FrontendMessage
		reply
	}{
		{&pgproto3.Close{ObjectType: 'S', Name: name}, reply{kind: closing, hide: true}}, // of the last time
		{&pgproto3.Parse{Name: name, Query: raising(code, message)}, reply{kind: parsing, hide: true}},
		{&pgproto3.Bind{PreparedStatement: name, DestinationPortal: name}, reply{kind: binding, hide: true}},
		{&pgproto3.Execute{Portal: name}, reply{kind: executing}},
	} {
		s.forward(encode(m.FrontendMessage), m.reply)
	}
}

// raiseQuery is a simple query that raises an error.
func raiseQuery(code, message string) []byte {
	return encode(&pgproto3.Query{String: raising(code, message)})
}

// raising is SQL that fails. Code and message are the proxy's own.
func raising(code, message string) string {
	message = strings.ReplaceAll(message, "'", "''")
	return fmt.Sprintf(`DO $proxy$ BEGIN RAISE EXCEPTION '%s' USING ERRCODE = '%s'; END $proxy$`, message, code)
}

// sendRollback ends the transaction of a COMMIT that was made to fail. In its
// place an error was raised, which leaves a failed transaction open; a COMMIT
// that fails leaves none. So the client does not see the ReadyForQuery that
// speaks of a failed transaction, but the one of this query.
func (s *session) sendRollback() {
	s.forward(encode(&pgproto3.Query{String: "ROLLBACK"}), reply{kind: querying, hide: true})
}

// shutDown ends the session as a server does that is told to end it: with an
// error that nobody asked for. What the server has begun is rolled back when
// it sees that its client is gone.
func (s *session) shutDown(code string) bool {
	raw := encode(&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code,
		Message: "terminating connection: " + injected,
	})
	s.farewell.Store(&raw)
	_ = s.server.Close()
	return false
}

// abandon sends a COMMIT on and leaves before the answer. The server's
// connection ends only after it has got all of it.
func (s *session) abandon(raw []byte, r reply) {
	s.forward(raw, r)
	s.reset()
}

func encode(m pgproto3.Message) []byte {
	raw, err := m.Encode(nil)
	if err != nil {
		// Only messages beyond a gigabyte cannot be encoded.
		panic(fmt.Sprintf("encode %T: %v", m, err))
	}
	return raw
}
