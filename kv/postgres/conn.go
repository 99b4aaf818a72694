package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// conn is one connection with its prepared statements. Only one goroutine uses it at a
// time.
//
// pgconn makes the connection (addresses, TLS, passwords); after that, this package
// implements the protocol itself. That is less work per statement, and it makes a commit
// without an answer safe to handle. pgconn would ask the server to cancel it, and
// PostgreSQL answers a commit that was canceled while it waited for its standby as if the
// standby had it.
type conn struct {
	net    net.Conn
	fe     *pgproto3.Frontend
	status byte // transaction status: 'I' idle, 'T' in a transaction, 'E' in a failed one
	// owed counts pending answers (each up to its ReadyForQuery) that no caller waits for.
	owed int
	// warning is the server's last warning.
	warning string
	// notified is called for notifications.
	notified func(payload string)
	heard    *lastHeard
	broken   bool
	fresh    bool // never used
	// generation of the database's connections: those of an earlier one are not used again.
	generation int64
	// table is the identity of the table head when the connection was made, 0 if unknown.
	table int32
}

var binaryFormat = []int16{1}

// connectTo opens a connection and compares the database behind it with the known commits.
func (db *DB) connectTo(ctx context.Context, config *pgconn.Config) (*arrival, error) {
	generation := db.generation.Load()
	pg, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	hijacked, err := pg.Hijack()
	if err != nil {
		pg.Close(ctx)
		return nil, err
	}
	a := &arrival{conn: &conn{
		net: hijacked.Conn, fe: hijacked.Frontend, status: hijacked.TxStatus, heard: &db.heard, fresh: true, generation: generation,
	}, host: hostOf(config), known: db.known()}
	stop := a.watch(ctx)
	err = db.setUp(a)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// setUp makes the session's settings, prepares all statements, and asks which database it is
// and whether it has all known commits.
func (db *DB) setUp(a *arrival) error {
	c := a.conn
	statements := db.settings
	if db.describesInstance() {
		statements = append(slices.Clone(statements), db.askInstance())
	}
	c.fe.SendQuery(&pgproto3.Query{String: strings.Join(statements, ";")})
	for i, s := range db.queries {
		if s.sql == "" {
			continue
		}
		c.fe.SendParse(&pgproto3.Parse{Name: name(query(i)), Query: s.sql, ParameterOIDs: s.params})
	}
	a.known.ask(c)
	c.sync()
	if err := c.flush(); err != nil {
		return err
	}
	if err := c.results(len(db.settings)); err != nil {
		return err
	}
	var err error
	if db.describesInstance() {
		if a.instance, err = c.hearInstance(); err != nil {
			return err
		}
	}
	if err := c.ready(); err != nil {
		return err
	}
	if a.lacks, a.dropped, err = a.known.hear(c); err != nil {
		return err
	}
	return c.ready()
}

// sameTable checks that a head is of the table that was there when the connection was made.
// After a restore it is another one, and only a new connection compares it.
func (c *conn) sameTable(h head) error {
	if c.table == 0 || h.table == c.table {
		return nil
	}
	return c.lost(errors.New("the tables were replaced, as by a restore"))
}

func name(q query) string { return "q" + strconv.Itoa(int(q)) }

// watch makes a connection fail when ctx ends. The returned function stops that, and
// reports whether the connection is still usable.
func (c *conn) watch(ctx context.Context) (stop func() bool) {
	if deadline, ok := ctx.Deadline(); ok {
		// Reached only if the timer below is late.
		_ = c.net.SetDeadline(deadline.Add(time.Second))
	} else {
		_ = c.net.SetDeadline(time.Time{})
	}
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, func() { _ = c.net.SetDeadline(time.Unix(1, 0)) })
}

// send sends a prepared statement for execution.
func (c *conn) send(q query, params ...[]byte) {
	c.fe.SendBind(&pgproto3.Bind{
		PreparedStatement:    name(q),
		ParameterFormatCodes: binaryFormat,
		Parameters:           params,
		ResultFormatCodes:    binaryFormat,
	})
	c.fe.SendExecute(&pgproto3.Execute{})
}

// sync ends a series of statements: if one of them fails the rest is skipped.
func (c *conn) sync() { c.fe.SendSync(&pgproto3.Sync{}) }

func (c *conn) flush() error {
	if err := c.fe.Flush(); err != nil {
		return c.lost(err)
	}
	return nil
}

func (c *conn) lost(err error) error {
	c.broken = true
	return &lostError{err}
}

// lostError is returned if the connection is lost, and with it the answer.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

func (c *conn) receive() (pgproto3.BackendMessage, error) {
	for {
		msg, err := c.fe.Receive()
		if err != nil {
			return nil, c.lost(err)
		}
		c.heard.now()
		switch m := msg.(type) {
		case *pgproto3.NoticeResponse:
			if m.SeverityUnlocalized == "WARNING" {
				c.warning = m.Message
			}
		case *pgproto3.NotificationResponse:
			if c.notified != nil {
				c.notified(m.Payload)
			}
		case *pgproto3.ParameterStatus:
		default:
			return msg, nil
		}
	}
}

// rest reads up to the end of a series.
func (c *conn) rest() error {
	for {
		msg, err := c.receive()
		if err != nil {
			return err
		}
		switch m := msg.(type) {
		case *pgproto3.ReadyForQuery:
			c.status = m.TxStatus
			return nil
		case *pgproto3.ErrorResponse:
			if err := c.failed(m); c.broken {
				return err
			}
		}
	}
}

// failed converts the server's error response to an error.
func (c *conn) failed(m *pgproto3.ErrorResponse) error {
	err := pgconn.ErrorResponseToPgError(m)
	if err.SeverityUnlocalized == "FATAL" || err.SeverityUnlocalized == "PANIC" {
		return c.lost(err)
	}
	return err
}

// drain reads the owed answers.
func (c *conn) drain() error {
	for c.owed > 0 {
		if err := c.rest(); err != nil {
			return err
		}
		c.owed--
	}
	return nil
}

// result reads the answer to one statement. After an error of the server (*pgconn.PgError)
// the series is over; the connection can be reused.
func (c *conn) result(row func(cols *columns) error) (tag string, err error) {
	if err := c.drain(); err != nil {
		return "", err
	}
	var failed error
	for {
		msg, err := c.receive()
		if err != nil {
			return "", err
		}
		switch m := msg.(type) {
		case *pgproto3.ParseComplete, *pgproto3.BindComplete, *pgproto3.RowDescription:
		case *pgproto3.DataRow:
			if row == nil || failed != nil {
				continue
			}
			cols := columns{cols: m.Values}
			if failed = row(&cols); failed == nil {
				failed = cols.err
			}
		case *pgproto3.CommandComplete:
			return string(m.CommandTag), failed
		case *pgproto3.ErrorResponse:
			err := c.failed(m)
			if !c.broken {
				if err := c.rest(); err != nil {
					return "", err
				}
			}
			return "", err
		default:
			return "", c.lost(fmt.Errorf("unexpected message %T", msg))
		}
	}
}

// results reads the answers to n statements without rows.
func (c *conn) results(n int) error {
	for range n {
		if _, err := c.result(nil); err != nil {
			return err
		}
	}
	return nil
}

// ready reads the end of a series.
func (c *conn) ready() error {
	if err := c.drain(); err != nil {
		return err
	}
	msg, err := c.receive()
	if err != nil {
		return err
	}
	switch m := msg.(type) {
	case *pgproto3.ReadyForQuery:
		c.status = m.TxStatus
		return nil
	case *pgproto3.ErrorResponse:
		err := c.failed(m)
		if !c.broken {
			if err := c.rest(); err != nil {
				return err
			}
		}
		return err
	case *pgproto3.ParseComplete:
		return c.ready()
	}
	return c.lost(fmt.Errorf("unexpected message %T", msg))
}

// simple executes one statement that is not prepared. Columns are text.
func (c *conn) simple(sql string, row func(cols [][]byte)) error {
	c.fe.SendQuery(&pgproto3.Query{String: sql})
	if err := c.flush(); err != nil {
		return err
	}
	_, err := c.result(func(cols *columns) error {
		if row != nil {
			row(cols.cols)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.ready()
}

// rollback aborts a transaction without waiting for the answer.
func (c *conn) rollback() {
	if c.broken || c.status == 'I' {
		return
	}
	// Not prepared: not every database accepts a Bind message in a failed transaction.
	c.fe.SendQuery(&pgproto3.Query{String: "ROLLBACK"})
	if c.flush() == nil {
		c.owed++
		c.status = 'I'
	}
}

// close ends the session. The server rolls back an open transaction.
func (c *conn) close() {
	c.broken = true
	_ = c.net.SetDeadline(time.Now().Add(100 * time.Millisecond))
	c.fe.Send(&pgproto3.Terminate{})
	_ = c.fe.Flush()
	_ = c.net.Close()
}

// transaction executes statements in one transaction, without their results.
func (c *conn) transaction(statements ...string) error {
	if err := c.drain(); err != nil {
		return err
	}
	c.fe.SendQuery(&pgproto3.Query{String: "BEGIN;" + strings.Join(statements, ";") + ";COMMIT"})
	if err := c.flush(); err != nil {
		return err
	}
	return c.rest()
}
