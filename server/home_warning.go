package server

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// warnOfHome returns a warning for an object that no member gets. Users expect that what they apply runs
// somewhere, and kubectl rollout status would wait for a workload that stays here.
func warnOfHome(obj *unstructured.Unstructured) string {
	why := interpret.StaysHome(obj)
	if why == "" {
		return ""
	}
	return "it stays in Atoll, and no member gets it: " + why
}
