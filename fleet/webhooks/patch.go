package webhooks

import (
	"errors"
	"fmt"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

const (
	// maxOperations bounds the operations of a patch, and maxObjectBytes its result.
	maxOperations  = 10_000
	maxObjectBytes = 3 << 20
)

// patched returns an object after a patch by RFC 6902.
func patched(object, patch []byte) (map[string]any, error) {
	if len(patch) > 0 {
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, fmt.Errorf("the patch is not a list of operations by RFC 6902: %w", err)
		}
		if len(operations) > maxOperations {
			return nil, fmt.Errorf("the patch has %d operations, want at most %d", len(operations), maxOperations)
		}
		if object, err = apply(object, operations); err != nil {
			return nil, err
		}
	}
	var out map[string]any
	if err := utiljson.Unmarshal(object, &out); err != nil || out == nil {
		return nil, errors.New("the result of the patch is not an object")
	}
	return out, nil
}

// apply applies a patch and checks the size of the result. Only copies can make it much larger than
// object and patch together: twenty of them a million times. So the size is checked after each.
func apply(object []byte, all jsonpatch.Patch) ([]byte, error) {
	for len(all) > 0 {
		n := 0
		for n < len(all) && all[n].Kind() != "copy" {
			n++
		}
		n = min(n+1, len(all)) // up to the next copy
		var err error
		if object, err = all[:n].Apply(object); err != nil {
			return nil, fmt.Errorf("the patch does not match the object: %w", err)
		}
		if len(object) > maxObjectBytes {
			return nil, fmt.Errorf("the result of the patch is larger than %d bytes", maxObjectBytes)
		}
		all = all[n:]
	}
	return object, nil
}
