package postgres

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// peerLimit is how long a database's machine may take to acknowledge sent data. A statement
// may take longer, because the machine's kernel acknowledges. But if packets are dropped
// silently, this machine's kernel would retry ever more rarely, for a quarter of an hour.
// After a network outage, a statement would then wait for as long again as the outage
// lasted.
const peerLimit = 6 * time.Second

// guarded makes pgconn's checks of a host return an error if the connection ends during the
// answer: they expect a row, and panic without one.
func guarded(validate pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	if validate == nil {
		return nil
	}
	return func(ctx context.Context, c *pgconn.PgConn) (err error) {
		defer func() {
			if reason := recover(); reason != nil {
				err = fmt.Errorf("check the session of the host: %w (%v)", io.ErrUnexpectedEOF, reason)
			}
		}()
		return validate(ctx, c)
	}
}

// newDialer returns a dialer whose connections end when their peer is silent.
func newDialer() *net.Dialer {
	return &net.Dialer{
		// For idle connections.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: peerLimit / 2, Interval: peerLimit / 6, Count: 3},
		// For connections with data under way.
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var failed error
			if err := c.Control(func(fd uintptr) { failed = limitUnacknowledged(fd, peerLimit) }); err != nil {
				return err
			}
			return failed
		},
	}
}
