package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// shownMoves is how many moves a prompt lists.
const shownMoves = 20

// policyArgument returns the policy that an argument names: placement/web, clusterplacements.fleet.atoll.dev/spread.
func policyArgument(arg string) (kind, name string, is bool) {
	word, name, cut := strings.Cut(arg, "/")
	if !cut || name == "" {
		return "", "", false
	}
	resource, group, qualified := strings.Cut(strings.ToLower(word), ".")
	if qualified && group != v1alpha1.Group && group != v1alpha1.Version+"."+v1alpha1.Group {
		return "", "", false
	}
	switch resource {
	case "placement", "placements", "pl":
		return "Placement", name, true
	case "clusterplacement", "clusterplacements", "cpl":
		return "ClusterPlacement", name, true
	}
	return "", "", false
}

// approvePolicy puts the latest edit of a policy into effect for all objects.
func approvePolicy(cmd *cobra.Command, c *infraCommand, kind, name string, yes bool) error {
	namespace, resource := "", v1alpha1.ClusterPlacementResource
	if kind == "Placement" {
		var err error
		if namespace, err = c.atoll.namespace(c.namespace); err != nil {
			return err
		}
		resource = v1alpha1.PlacementResource
	}
	f, err := newFleetReader(&c.atoll)
	if err != nil {
		return err
	}
	ctx, full := cmd.Context(), kind+" "+policyName(namespace, name)
	u, err := f.dynamic.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read %s: %w", full, err)
	}
	p, err := policySubject(kind, u.Object)
	if err != nil {
		return fmt.Errorf("read %s: %w", full, err)
	}
	out := cmd.OutOrStdout()
	if p.IsSettled() {
		fmt.Fprintf(out, "Nothing to approve: generation %d of %s is in effect for all objects.\n", p.Meta.Generation, full)
		return nil
	}
	s, err := f.snapshot(ctx, cmd.ErrOrStderr())
	switch {
	case apierrors.IsForbidden(err): // the user may change the policy, but not read all that decisions depend on
		if active := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementActive); active != nil {
			fmt.Fprintf(out, "%s: %s.\n", full, active.Message)
		}
	case err != nil:
		return err
	default:
		edit, _ := s.Edit(&p)
		if edit.Invalid {
			return fmt.Errorf("generation %d of %s is invalid: correct it first. Run `kubectl get %s %s -o yaml` for the reason", p.Meta.Generation, full, strings.ToLower(kind), name)
		}
		if err := printEdit(cmd, full, &edit); err != nil {
			return err
		}
	}
	if !yes {
		session, err := c.session(cmd)
		if err != nil {
			return err
		}
		if err := session.Confirm(ctx, fmt.Sprintf("generation %d of %s", p.Meta.Generation, full), full, "use --yes"); err != nil {
			return err
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.Meta.UID,
		"annotations": map[string]any{v1alpha1.ApprovedAnnotation: strconv.FormatInt(p.Meta.Generation, 10)}}})
	if err != nil {
		return err
	}
	if _, err := f.dynamic.Resource(resource).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "atoll"}); err != nil {
		return fmt.Errorf("approve %s: %w", full, err)
	}
	fmt.Fprintf(out, "%s/%s approved (generation %d)\n", resource.GroupResource(), name, p.Meta.Generation)
	return nil
}

func policySubject(kind string, object map[string]any) (placement.Subject, error) {
	if kind == "Placement" {
		p := &v1alpha1.Placement{}
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, p)
		return placement.SubjectOf(p), err
	}
	p := &v1alpha1.ClusterPlacement{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, p)
	return placement.SubjectOfCluster(p), err
}

// printEdit prints how many objects an edit changes, and the first moves.
func printEdit(cmd *cobra.Command, full string, e *scheduler.Edit) error {
	fmt.Fprintf(cmd.OutOrStdout(), "Generation %d of %s changes %d objects that follow earlier content.\n", e.Generation, full, e.Objects)
	moves := e.Moves[:min(shownMoves, len(e.Moves))]
	if err := printMoves(cmd.OutOrStdout(), "table", moves); err != nil {
		return err
	}
	if more := len(e.Moves) - len(moves); more > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "and %d more\n", more)
	}
	return nil
}
