//go:build unix

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A relay forwards named calls to a provider, as bytes and at most once, and completes them.
type relay struct {
	conn    *grpc.ClientConn
	journal *journal
	// limit is the timeout of a named call.
	limit time.Duration
	// isOrphaned reports whether the server is gone.
	isOrphaned func() bool
	// errorLog receives errors that no caller can be told.
	errorLog io.Writer

	mu     sync.Mutex
	closed bool
	named  sync.WaitGroup
}

// close rejects new calls.
func (r *relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// wait waits for the named calls in flight.
func (r *relay) wait() { r.named.Wait() }

func (r *relay) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.named.Add(1)
	}
	return !r.closed
}

// handle handles every method that changes something.
func (r *relay) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	name, err := attached(stream.Context())
	if err != nil || name == nil {
		return status.Error(codes.InvalidArgument, "the call has no valid name")
	}
	answer, err := r.once(stream, *name, method, request)
	if err != nil {
		return err
	}
	return stream.SendMsg(&answer)
}

// once makes a named call, unless the journal already has it.
func (r *relay) once(stream grpc.ServerStream, name callName, method string, request []byte) ([]byte, error) {
	verdict := func(is string, err error) error {
		stream.SetTrailer(metadata.Pairs(verdictKey, is))
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if !r.enter() {
		return nil, verdict(verdictNotNow, errStopping)
	}
	defer r.named.Done()
	page, err := r.journal.begin(name)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, verdict(verdictKnown, err)
	case err != nil:
		return nil, verdict(verdictNotNow, fmt.Errorf("writing the journal of calls: %w", err))
	case r.isOrphaned():
		// A new server may have looked at the journal before the record existed. If the old server
		// still lives, no new one can have looked.
		return nil, verdict(verdictNotNow, errors.Join(errStopping, page.withdraw()))
	}
	of := r.make(method, request)
	if err := page.finish(of); err != nil {
		// The server gets the answer anyway. If it does not, the call counts as lost.
		fmt.Fprintf(r.errorLog, "writing an answer to the journal of calls: %v\n", err)
	}
	if of.code != codes.OK {
		return nil, status.Error(of.code, of.message)
	}
	return of.answer, nil
}

// make makes a call to its end, and enforces its timeout alone. The provider is not given a
// deadline: it would give up at the same moment.
func (r *relay) make(method string, request []byte) outcome {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	late := time.AfterFunc(r.limit, cancel)
	var answer []byte
	err := r.conn.Invoke(ctx, method, &request, &answer, grpc.ForceCodecV2(rawBytes{}))
	switch {
	case err == nil:
		return outcome{answer: answer}
	case !late.Stop():
		return outcome{code: codes.DeadlineExceeded, message: fmt.Sprintf("%v (%s)", errHung, r.limit)}
	}
	s := status.Convert(err)
	return outcome{code: s.Code(), message: s.Message()}
}
