#pragma once

#define LEAKED 1
