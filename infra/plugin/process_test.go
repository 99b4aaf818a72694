package plugin

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// An ended is a child whose processes have all ended.
type ended struct {
	child
	with string
}

func (ended) gone() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (e ended) exit() string           { return e.with }
func (ended) exitDelay() time.Duration { return time.Minute }

// TestExitErrorOfClosedConnection: the caller gets the same error, whether the reader of the
// connection or its closer notices first that the process has ended.
func TestExitErrorOfClosedConnection(t *testing.T) {
	t.Parallel()
	for by, end := range map[string]func(*grpc.Server, *grpc.ClientConn){
		"what closes it": func(_ *grpc.Server, conn *grpc.ClientConn) { conn.Close() },
		"what reads it":  func(server *grpc.Server, _ *grpc.ClientConn) { go server.Stop() },
	} {
		t.Run(by, func(t *testing.T) {
			asked := make(chan struct{})
			server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
				close(asked)
				<-stream.Context().Done()
				return nil
			}))
			listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = server.Serve(listener) }()
			defer server.Stop()
			conn, err := grpc.NewClient("unix:"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			p := &process{access: access{protocol: 6, conn: conn}, child: ended{with: "signal: killed"}, output: &tail{}, mask: newMask(nil)}
			failed := make(chan error, 1)
			go func() {
				failed <- p.invoke(t.Context(), "StopProvider", &tfplugin6.StopProvider_Request{}, &tfplugin6.StopProvider_Response{})
			}()
			<-asked
			end(server, conn)
			if err := p.explain(<-failed); !strings.Contains(err.Error(), "its process exited: signal: killed") {
				t.Errorf("the caller's error: %v", err)
			}
		})
	}
}
