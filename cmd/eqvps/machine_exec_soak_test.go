//go:build soak

package main

import "testing"

// TestManySandboxesSideBySide is TestCommandsSideBySide in full.
func TestManySandboxesSideBySide(t *testing.T) { sideBySide(t, 20, 200) }
