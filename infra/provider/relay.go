//go:build unix

package provider

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

// A relay passes calls that have a name on to a provider, as bytes, once only, and to their end.
type relay struct {
	conn    *grpc.ClientConn
	journal *journal
	// limit is how long a call with a name can take.
	limit time.Duration
	// isOrphaned tells whether the server is gone.
	isOrphaned func() bool
	// complaints are what else cannot be told to anybody.
	complaints io.Writer

	mu     sync.Mutex
	closed bool
	named  sync.WaitGroup
}

// close has it begin nothing more.
func (r *relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// wait waits for the calls that have a name.
func (r *relay) wait() { r.named.Wait() }

func (r *relay) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.named.Add(1)
	}
	return !r.closed
}

// handle is for every method that changes something.
func (r *relay) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	name, err := attached(stream.Context())
	if err != nil || name == nil {
		return status.Error(codes.InvalidArgument, "the call has no name that can be read")
	}
	answer, err := r.once(stream, *name, method, request)
	if err != nil {
		return err
	}
	return stream.SendMsg(&answer)
}

// once makes a call that has a name, if the journal does not know it.
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
		return nil, verdict(verdictNotNow, fmt.Errorf("the journal of calls: %w", err))
	case r.isOrphaned():
		// A server that comes now may have looked before there was anything to see. If there still is one, none can have.
		return nil, verdict(verdictNotNow, errors.Join(errStopping, page.withdraw()))
	}
	of := r.make(method, request)
	if err := page.finish(of); err != nil {
		// The server gets the answer all the same. If it does not, the call counts as lost.
		fmt.Fprintf(r.complaints, "writing the answer of a call into the journal: %v\n", err)
	}
	if of.code != codes.OK {
		return nil, status.Error(of.code, of.message)
	}
	return of.answer, nil
}

// make makes a call to its end, and bounds it alone. The provider is not told until when: it would give
// up in the same moment.
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
		return outcome{code: codes.DeadlineExceeded, message: fmt.Sprintf("%v: within %s", errHung, r.limit)}
	}
	s := status.Convert(err)
	return outcome{code: s.Code(), message: s.Message()}
}
