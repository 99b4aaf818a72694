package workspaces

import (
	"context"
	"fmt"

	"github.com/atoll-dev/atoll/apiserver/overlay"
)

// Initialize makes a workspace complete, unless it is, and its client show the objects that it begins with. begin is called if the workspace
// is new, also if a server crashed after it created the keyspace. Initialize may be repeated after an error. Call it before the first request.
func (s *Server) Initialize(ctx context.Context, w *Workspace, begin func(context.Context) (overlay.Beginning, error)) error {
	chain, err := s.built()
	if err != nil {
		return err
	}
	base, err := s.base()
	if err == nil {
		err = w.readIssuer(ctx)
	}
	if err == nil {
		err = chain.encoder.Initialize(ctx, base, overlay.New{Client: w.client, UID: w.uid, Begin: begin})
	}
	if err != nil {
		return fmt.Errorf("initialize a workspace: %w", err)
	}
	return nil
}
