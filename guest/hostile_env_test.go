package guest

import (
	"context"
	"strings"
	"testing"

	"github.com/eqvps/eqvps"
)

// TestEnvOfAnOldGuest: it is told what to do instead, and not asked.
func TestEnvOfAnOldGuest(t *testing.T) {
	c := &Client{version: envSince - 1}
	err := c.SetEnv(context.Background(), eqvps.EnvChange{Set: eqvps.Env{"A": "canary"}})
	if eqvps.ErrorCode(err) != eqvps.CodeInvalidValue || strings.Contains(err.Error(), "canary") {
		t.Errorf("the error is %v", err)
	}
}
