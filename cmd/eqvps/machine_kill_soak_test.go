//go:build soak

package main

import (
	"testing"

	"github.com/eqvps/eqvps"
)

// TestServerKilledAtEachStepOfPersistent is TestServerKilledAtEachStep with
// pauses, resumes and reboots on the way. Package node breaks the same steps one
// by one in `make test`.
func TestServerKilledAtEachStepOfPersistent(t *testing.T) { killedAtEachStep(t, eqvps.Persistent) }
