package pgproxy

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// verdict is the fault that a statement meets.
type verdict uint8

const (
	passes verdict = iota
	fails
	misreports
	shutsDown
	loses
	abandons
)

// injected is the message of random errors.
const injected = "injected by the proxy"

// missing returns the error message of a database that lacks features.
func missing(f Features) string { return "not supported by this database: " + f.String() }

// failure is the error that a statement meets.
type failure struct{ code, message string }

// judge draws the fault of a statement at random, and counts it. Lost replies are counted when they
// happen.
func (s *session) judge(f Faults, c class) (verdict, failure) {
	if c.rollback {
		// A failed ROLLBACK would mean that the transaction of a client that gave up continues. No
		// server does that.
		return passes, failure{}
	}
	chance, prefix := f.Fail, failedPrefix
	misreported := c.commit && happens(s.upChance, f.MisreportCommit)
	if c.commit && !misreported {
		if happens(s.upChance, f.LoseCommitReply) {
			return loses, failure{}
		}
		if happens(s.upChance, f.AbandonCommit) {
			s.count(CommitsAbandoned)
			return abandons, failure{}
		}
		chance, prefix = f.FailCommit, failedCommitPrefix
	}
	if !misreported && !happens(s.upChance, chance) {
		return passes, failure{}
	}
	code := Serialization
	if len(f.Codes) > 0 {
		code = f.Codes[s.upChance.IntN(len(f.Codes))]
	}
	code, message, _ := strings.Cut(code, " ")
	if misreported {
		prefix = misreportedPrefix
	}
	s.count(prefix + code)
	if strings.HasPrefix(code, "57P") && !misreported {
		return shutsDown, failure{code: code}
	}
	if message == "" {
		message = injected
	}
	if misreported {
		return misreports, failure{code, message}
	}
	return fails, failure{code, message}
}

// raise replaces a message of the extended protocol by one that fails on the server. The transaction
// fails and the server skips the messages up to the next Sync, as after any error.
func (s *session) raise(e failure) {
	const name = "pgproxy"
	for _, m := range []struct {
		pgproto3.FrontendMessage
		reply
	}{
		{&pgproto3.Close{ObjectType: 'S', Name: name}, reply{kind: closing, hide: true}}, // of the previous call
		{&pgproto3.Parse{Name: name, Query: raising(e)}, reply{kind: parsing, hide: true}},
		{&pgproto3.Bind{PreparedStatement: name, DestinationPortal: name}, reply{kind: binding, hide: true}},
		{&pgproto3.Execute{Portal: name}, reply{kind: executing}},
	} {
		s.forward(encode(m.FrontendMessage), m.reply)
	}
}

// raiseQuery returns a simple query that raises an error.
func raiseQuery(e failure) []byte {
	return encode(&pgproto3.Query{String: raising(e)})
}

// raising returns SQL that fails. Code and message come from the proxy, not from clients.
func raising(e failure) string {
	message := strings.ReplaceAll(strings.ReplaceAll(e.message, "'", "''"), "%", "%%")
	return fmt.Sprintf(`DO $proxy$ BEGIN RAISE EXCEPTION '%s' USING ERRCODE = '%s'; END $proxy$`, message, e.code)
}

// sendRollback ends the transaction of a COMMIT that was made to fail. The error raised in its place
// leaves a failed transaction open, but a real failed COMMIT leaves none. So the proxy hides the
// ReadyForQuery that reports a failed transaction, and passes that of this ROLLBACK.
func (s *session) sendRollback() {
	s.forward(encode(&pgproto3.Query{String: "ROLLBACK"}), reply{kind: querying, hide: true})
}

// shutDown ends the session like a server that terminates it: with an unsolicited error. The server
// rolls back the open transaction when its connection closes.
func (s *session) shutDown(code string) bool {
	raw := encode(&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code,
		Message: "terminating connection: " + injected,
	})
	s.lastMessage.Store(&raw)
	_ = s.server.Close()
	return false
}

// abandon forwards a COMMIT and resets the client's connection before the answer. The server's
// connection ends only after the server has received the COMMIT.
func (s *session) abandon(raw []byte, r reply) {
	s.forward(raw, r)
	s.reset()
}

func encode(m pgproto3.Message) []byte {
	raw, err := m.Encode(nil)
	if err != nil {
		// Only messages above 1 GiB cannot be encoded.
		panic(fmt.Sprintf("encode %T: %v", m, err))
	}
	return raw
}
