package cli

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/tenancy/mapping"
)

// placedTimeout bounds the question whose clusters run the objects of a workspace.
const placedTimeout = 5 * time.Second

// checkOwnPlacement returns an error if the objects of a workspace run in the clusters of the one above: commands about clusters would find none. If its
// user may not read that, it returns nil.
func checkOwnPlacement(config *rest.Config) error {
	root, path := splitWorkspaceURL(config.Host)
	if path == "" || isTree(path) {
		return nil
	}
	above, name := splitWorkspacePath(path)
	parent := rest.CopyConfig(config)
	parent.Host = workspaceURL(root, above)
	client, err := workspacesOf(parent)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), placedTimeout)
	defer cancel()
	w, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil // the command reports it, if it matters
	}
	if from, _, _ := unstructured.NestedString(w.Object, "spec", "placement", "from"); from == "" {
		return nil
	}
	where := above
	if above == "" {
		where = "root"
	}
	return fmt.Errorf("the objects of workspace %s run in the clusters of %s: use -w %s, and for a namespace NAME the namespace %s", path, where, where, mapping.Child{Name: name}.Namespace("NAME"))
}
